"""What kernel and rank 0 tell each other besides the cell's objects: it travels before these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .random_state import RandomState
from .tracker_run import LeftRun, TrackedRun


@dataclass(frozen=True)
class SentHeader:
    """What a rank takes on before it runs the cell.

    Attributes:
        random: states of random number generators, see ``nbmgpu.environment.random_state``.
        settings: torch's, see ``nbmgpu.environment.torch_settings``.
        verbosity: warnings and loggers, see ``nbmgpu.environment.logging_state``.
        tracked: the notebook's run of wandb, None if it has begun none.
        sources: of the notebook's earlier cells, by file name, each with the cell's number or None.
        execution_count: the number before the cell.
    """

    random: RandomState
    settings: dict[str, Any]
    verbosity: dict[str, Any]
    tracked: TrackedRun | None
    sources: dict[str, tuple[str, int | None]] = field(default_factory=dict)
    execution_count: int = 1


@dataclass(frozen=True)
class ReturnedHeader:
    """What the kernel takes on when the cell is over.

    Attributes:
        random: states of random number generators, after the cell.
        deleted: names that the cell has deleted.
        kept: names that stand for what they have stood for before.
        tracked: what the cell has made of the notebook's run of wandb, if there is one.
    """

    random: RandomState
    deleted: list[str]
    kept: list[str]
    tracked: LeftRun | None
