"""Cells that distribute their training by a library, instead of by ``--strategy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbmgpu.errors import StrategyError, format_message

if TYPE_CHECKING:
    from nbmgpu.strategies.base import Strategy


def distributes_by_itself(strategy: Strategy) -> bool:
    """Return whether ``strategy`` leaves the distribution of the training to the cell."""
    return strategy.profile.name == "none"


def refuse(what: str, strategy: str) -> None:
    """Refuse a distribution that the cell chooses in addition to the strategy.

    Args:
        what: the code that chooses it.
        strategy: name of the strategy.

    Raises:
        StrategyError: always.
    """
    raise StrategyError(
        format_message(
            f"{what} chooses a distribution in the cell, and --strategy {strategy} another one",
            "Remove it and choose with --strategy (fsdp, zero2, deepspeed_stage_2, ...), or let "
            "the cell distribute by itself",
            "%%mgpu --strategy none",
        )
    )
