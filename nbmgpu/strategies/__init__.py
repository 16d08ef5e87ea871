"""Strategies: how the ranks of a run share the work of training.

A strategy is found by name through the entry point group ``nbmgpu.strategies``,
so another package can add its own.  It knows modules, optimizers and process
groups, and nothing of notebooks, files or widgets.

- ``catalogue``: what each is called, takes, needs and costs; ``tuning``: its options.
- ``base``: what a strategy is told, and does.
- ``ddp``, ``zero1``, ``dp``, ``none``; ``fsdp/`` (``zero2``, too) and ``deepspeed/``.
- Gradients: ``reducer`` averages them in ``buckets``, ``tail`` is what travels behind them,
  ``sums`` adds up over ranks, ``amounts`` are weights that may lie on a GPU.
- ``replicas``: what else keeps copies alike; ``trainable``: what trains at this moment.
- ``states``: an optimizer's, spread over ranks; ``separable``: may they be?
- ``blocks``: a model's repeated parts; ``attendance``: saving what is spread.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from nbmgpu.errors import OptionError, closest_match, format_message

from .profiles import BUILT_IN, Profile
from .strategy_options import StrategyOptions

if TYPE_CHECKING:
    from .base import Strategy

__all__ = [
    "Profile",
    "StrategyOptions",
    "canonical",
    "load_strategy",
    "profile_of",
    "strategy_names",
]

GROUP = "nbmgpu.strategies"


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


@functools.cache
def strategy_names() -> tuple[str, ...]:
    """Return the names that ``--strategy`` accepts, without aliases: ours first, then others'."""
    found = _entry_points()
    return (*(n for n in BUILT_IN if n in found), *sorted(found.keys() - BUILT_IN.keys()))


@functools.cache
def _aliases() -> dict[str, str]:
    known = strategy_names()
    return {alias: p.name for p in BUILT_IN.values() if p.name in known for alias in p.aliases}


def canonical(name: str) -> str | None:
    """Return the strategy meant by ``name`` or by an alias, however it is spelled; None if none.

    ``FSDP2``, ``zero-3`` and ``deepspeed_stage_3`` are all names that some tool uses.
    """
    if name in strategy_names():
        return name
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    return plain if plain in strategy_names() else _aliases().get(plain)


def nearest(name: str) -> str:
    """Return the strategy most likely meant by a name that is none."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_")
    names = [n for n in (*strategy_names(), *_aliases()) if n != "dp"]  # "dpp" means ddp
    near = closest_match(plain, names)
    return (canonical(near) if near else None) or "ddp"


def profile_of(name: str) -> Profile:
    """Return what is known of the strategy called ``name``; ours are not imported for it.

    Raises:
        OptionError: there is none of that name.
    """
    return BUILT_IN[name] if name in BUILT_IN else load_strategy(name).profile


def load_strategy(name: str) -> type[Strategy]:
    """Import and return the strategy called ``name``.

    Raises:
        OptionError: there is none of that name.
    """
    found = _entry_points().get(name)
    if found is None:
        names = strategy_names()
        raise OptionError(
            format_message(
                f"There is no strategy {name!r}",
                f"Strategies: {', '.join(names)}",
                f"%%mgpu --strategy {nearest(name)}",
            )
        )
    strategy: type[Strategy] = found.load()
    return strategy
