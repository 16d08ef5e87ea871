"""What a rank knows of trackers of experiments, such as wandb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nbmgpu.tracking import TrackedRun


@dataclass
class Trackers:
    """The run that the notebook has ``begun``, whether the cell has ``ended`` it, and what is left.

    ``ended`` is the exit code, None for a run that goes on.  ``at_end`` are called with one when
    the cell is over and its results are on their way.
    """

    begun: TrackedRun | None = None
    ended: int | None = None
    at_end: list[Callable[[int], None]] = field(default_factory=list)
