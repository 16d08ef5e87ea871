"""Strategies: how the ranks of a run share the work of training.

A strategy is found by name through the entry point group ``nbmgpu.strategies``,
so another package can add its own.  It knows modules, optimizers and process
groups, and nothing of notebooks, files or widgets.
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from nbmgpu.errors import OptionError, closest, compose

if TYPE_CHECKING:
    from .base import Strategy

GROUP = "nbmgpu.strategies"


@functools.cache
def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def strategy_names() -> tuple[str, ...]:
    """Return the names that ``--strategy`` accepts, sorted."""
    return tuple(sorted(_entry_points()))


def load_strategy(name: str) -> type[Strategy]:
    """Import and return the strategy called ``name``.

    Raises:
        OptionError: there is none of that name.
    """
    found = _entry_points().get(name)
    if found is None:
        names = strategy_names()
        near = closest(name, names) or "ddp"
        raise OptionError(
            compose(
                f"There is no strategy {name!r}",
                f"Strategies: {', '.join(names)}",
                f"%%mgpu --strategy {near}",
            )
        )
    strategy: type[Strategy] = found.load()
    return strategy
