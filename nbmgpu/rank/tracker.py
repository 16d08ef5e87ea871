"""The notebook's run of an experiment tracker, such as wandb, while a cell runs in ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nbmgpu.environment.tracker_run import TrackerRun, TrackerRunUpdate


@dataclass
class TrackerState:
    """The notebook's tracker run, and what to do with it when the cell has ended.

    Attributes:
        notebook_run: the run that the notebook has started; None if it has started none.
        run_update: returns how the cell has left that run.
        at_exit: called with the exit code of the cell, after its results have been saved.
    """

    notebook_run: TrackerRun | None = None
    run_update: Callable[[], TrackerRunUpdate | None] = lambda: None
    at_exit: list[Callable[[int], None]] = field(default_factory=list)
