"""``catalogue``: what one can choose on the first line of a cell, while no kernel is needed."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.devices.probe import torch_build
from nbmgpu.devices.requirements import missing_requirement
from nbmgpu.options.flags import FLAGS
from nbmgpu.strategies import strategy_names
from nbmgpu.strategies.profiles import BUILT_IN, Profile

from .base_handler import Handler
from .payloads import Catalogue, Choice, FlagHelp


class CatalogueHandler(Handler):
    """The strategies and the flags."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a ``Catalogue``."""
        self.answer(await self.services.work(catalogue))


def catalogue() -> Catalogue:
    """Return every strategy and every flag of ``%%mgpu``."""
    there = torch_build() is not None
    return Catalogue(
        strategies=[choice(name, there) for name in strategy_names()],
        flags=[
            FlagHelp(flag.name, flag.short, flag.metavar, flag.help, list(flag.completions()))
            for flag in FLAGS
        ],
    )


def choice(name: str, torch: bool) -> Choice:
    """Return a strategy; of other packages' no more than the name, for those import torch."""
    profile = BUILT_IN.get(name) or Profile(name, "of another package", supports=frozenset())
    return Choice(
        name=profile.name,
        summary=profile.summary,
        needs=profile.needs,
        saves=profile.saves,
        costs=profile.costs,
        options=[flag.name for flag in FLAGS if flag.field in profile.supports],
        shards_data=profile.shards_data,
        in_one_process=profile.in_one_process,
        missing=missing(profile, torch),
    )


def missing(profile: Profile, torch: bool) -> str:
    """Return what a strategy lacks where the server runs, as a sentence; kernels may differ.

    Args:
        torch: whether that is there.
    """
    if not torch:
        return "torch is not installed where this server runs."
    lack = missing_requirement(profile)
    return f"It needs {lack.needed}. Try: pip install {lack.install}" if lack else ""
