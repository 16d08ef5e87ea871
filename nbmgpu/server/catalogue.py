"""``catalogue``: the strategies and flags of ``%%mgpu``, without a kernel."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web

from nbmgpu.devices.probe import torch_build
from nbmgpu.devices.requirements import missing_requirement
from nbmgpu.options.flags import FLAGS
from nbmgpu.strategies import strategy_names
from nbmgpu.strategies.option_support import OptionSupport
from nbmgpu.strategies.profile import Profile
from nbmgpu.strategies.profiles import BUILT_IN

from .base_handler import Handler
from .payloads import Catalogue, FlagHelp, StrategyInfo


class CatalogueHandler(Handler):
    """Lists the strategies and flags."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a ``Catalogue``."""
        self.answer(await self.services.run_in_thread(catalogue))


def catalogue() -> Catalogue:
    """Return all strategies and flags of ``%%mgpu``."""
    has_torch = torch_build() is not None
    return Catalogue(
        strategies=[strategy_info(name, has_torch) for name in strategy_names()],
        flags=[
            FlagHelp(flag.name, flag.short, flag.metavar, flag.help, list(flag.completions()))
            for flag in FLAGS
        ],
    )


def strategy_info(name: str, has_torch: bool) -> StrategyInfo:
    """Describe a strategy; of other packages' only the name, because loading them imports torch."""
    none = OptionSupport(supported=frozenset())
    profile = BUILT_IN.get(name) or Profile(name, "of another package", options=none)
    return StrategyInfo(
        name=profile.name,
        summary=profile.summary,
        needs=profile.needs,
        saves=profile.saves,
        costs=profile.costs,
        options=[flag.name for flag in FLAGS if flag.field in profile.options.supported],
        shards_data=profile.shards_data,
        in_one_process=profile.in_one_process,
        missing=missing_packages(profile, has_torch),
    )


def missing_packages(profile: Profile, has_torch: bool) -> str:
    """Return which packages a strategy lacks in the server's environment, as a sentence.

    The environments of kernels may differ.
    """
    if not has_torch:
        return "torch is not installed where this server runs."
    missing = missing_requirement(profile)
    return f"It needs {missing.needed}. Try: pip install {missing.install}" if missing else ""
