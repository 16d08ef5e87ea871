"""``--hold``: ranks stay for the next cells of the notebook, which run with the same options."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import OptionError, format_message
from nbmgpu.runs.engine_plugins import DEFAULT_ENGINE
from nbmgpu.strategies.strategy_options import StrategyOptions

from .values import Problem

if TYPE_CHECKING:
    from .run_options import RunOptions

STRATEGIES = ("none", "ddp", "zero1", "zero2", "fsdp", "hsdp", "tp")
"""Strategies whose ranks can be held."""

EXCLUDED = {
    "background": "a later cell would not know when it may begin",
    "detach": "they are held for this kernel",
    "fresh": "torchrun's ranks end with their cell",
    "checkpoint_every": "a checkpoint is of one cell",
    "resume": "a checkpoint is of one cell",
    "max_restarts": "new ranks would not have what earlier cells have made",
}
"""Options that a cell in held ranks cannot have, and why."""

OF_RANKS = (
    "strategy", "gpus", "cpu", "batch", "engine", "nodes", "engine_option",
    *(field.name for field in dataclasses.fields(StrategyOptions)),
)  # fmt: skip
"""Options that are the same for all cells in the same ranks."""


@dataclass(frozen=True)
class HoldOptions:
    """The option of ranks that stay.

    Attributes:
        hold: whether ranks, and what they train, stay for the next cells.
    """

    hold: bool = False


def options_without_hold(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Problem]:
    """Return a problem for each option that contradicts ``--hold``, and correct ``values``."""
    if not values.get("hold"):
        return {}
    problems = {}
    for name, reason in EXCLUDED.items():
        if values.get(name, defaults[name]) != defaults[name]:
            flag = "--" + name.replace("_", "-")
            problems[name] = Problem(f"Ranks with --hold cannot have {flag}: {reason}")
            values[name] = defaults[name]
    if values.get("engine", DEFAULT_ENGINE) != DEFAULT_ENGINE:
        what = f"--engine {values['engine']} cannot hold ranks"
        problems["engine"] = Problem(what, "Only this machine's can: leave --engine out")
        values |= {"engine": DEFAULT_ENGINE, "nodes": None, "engine_option": ()}
    if (strategy := values.get("strategy", defaults["strategy"])) not in STRATEGIES:
        what = f"Ranks of strategy {strategy} cannot be held"
        problems["strategy"] = Problem(what, f"Strategies: {', '.join(STRATEGIES)}")
        values["strategy"] = "fsdp"
    if values.get("on_hang") == "restart":
        what = "Ranks with --hold cannot have --on-hang restart"
        problems["on_hang"] = Problem(what, EXCLUDED["max_restarts"])
        values["on_hang"] = "stop"
    return problems


def in_held_ranks(
    given: RunOptions, held: RunOptions, world_size: int, defaults: dict[str, Any]
) -> RunOptions:
    """Return the options of a cell that runs in ranks that are held.

    Args:
        given: those of the cell.  A default says nothing.
        held: those that the ranks were started with.
        world_size: number of ranks.
        defaults: of each option.

    Raises:
        OptionError: they contradict each other.
    """
    same = {"gpus": (held.gpus, world_size)}
    different = [
        name
        for name in OF_RANKS
        if getattr(given, name) not in (defaults[name], *same.get(name, (getattr(held, name),)))
    ]
    if different:
        flags = ", ".join("--" + name.replace("_", "-") for name in different)
        what = f"The cell gives {flags}, but it runs in ranks that are held with other options"
        allowed = f"They were started by {held.command}"
        raise OptionError(
            format_message(what, allowed, "%%mgpu without these options, or first %mgpu release")
        )
    of_ranks = {name: getattr(held, name) for name in OF_RANKS}
    return dataclasses.replace(given, hold=True, **of_ranks)
