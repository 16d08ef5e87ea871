"""The interface of views: each computes one part of what is displayed of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from nbmgpu.report.log_pages import LogReader
from nbmgpu.report.stopping import Stopping
from nbmgpu.runs.events import RunState
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView


@dataclass(frozen=True)
class RunMoment:
    """A run at one moment; its events have been read.

    Attributes:
        run: the run.
        state: its state.
        stopping: whether it was asked to stop, and how.
        now: in seconds since the epoch.
        epochs: the total number of epochs, 0 when unknown.
        logs: reads the logs of all ranks.
    """

    run: Run
    state: RunState
    stopping: Stopping
    now: float
    epochs: int
    logs: LogReader

    @property
    def view(self) -> RunView:
        """The state computed from the run's events: curves, ranks, notices."""
        return self.run.view


class PanelView(ABC):
    """Computes the payload of one part.

    The payload is sent when it differs from the last one. It is a frozen dataclass, a list of them,
    or plain data, and must be serializable as JSON. An instance belongs to one reader of one run.
    """

    heavy: ClassVar[bool] = False
    """Whether computing takes more than about a millisecond; computed less often then."""

    esm: ClassVar[str | Path] = ""
    """The ES module that draws the view, or its path. Only for views of other packages: built-in
    ones are in ``labextension/src/view``."""

    @abstractmethod
    def payload(self, moment: RunMoment) -> object:
        """Return what is displayed of the run at ``moment``."""
