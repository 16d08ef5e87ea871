"""What a rank knows of trackers of experiments, such as wandb."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nbmgpu.environment.tracker_run import TrackerRun, TrackerRunUpdate


@dataclass
class Trackers:
    """The run that the notebook has ``begun``, and what the cell has made of it.

    ``leaving`` tells that, when the cell is over; ``at_end`` are called with the cell's exit code
    once its results are on their way.
    """

    begun: TrackerRun | None = None
    leaving: Callable[[], TrackerRunUpdate | None] = lambda: None
    at_end: list[Callable[[int], None]] = field(default_factory=list)
