"""The table of views: each name is that of a part that the browser receives."""

from __future__ import annotations

import time

from nbmgpu.report.epoch_count import epochs_in
from nbmgpu.report.log_pages import LogReader
from nbmgpu.report.stopping import stopping
from nbmgpu.runs.run import Run

from .about import AboutView
from .base import PanelView, RunMoment
from .curves import CurvesView, ThroughputView
from .external import LOG, ExternalViews, installed_views
from .failure import FailureView
from .logs import LogsView
from .metrics import MetricsView
from .nodes import NodesView
from .notices import NoticesView
from .profile import ProfileView
from .progress import ProgressView
from .ranks import RanksView
from .shards import ShardsView
from .status import StatusView
from .system import SystemView
from .tensorboard import TensorBoardView

BUILT_IN: dict[str, type[PanelView]] = {
    "about": AboutView,
    "status": StatusView,
    "notices": NoticesView,
    "failure": FailureView,
    "progress": ProgressView,
    "curves": CurvesView,
    "throughput": ThroughputView,
    "metrics": MetricsView,
    "system": SystemView,
    "ranks": RanksView,
    "nodes": NodesView,
    "shards": ShardsView,
    "profile": ProfileView,
    "tensorboard": TensorBoardView,
    "logs": LogsView,
    "external": ExternalViews,
}
"""The views of nbmgpu; ``labextension/src/view/sections.ts`` lists the sections that draw them."""


class RunViews:
    """All views of one run, built-in and of other packages.

    A view of another package that raises an exception is logged and removed.
    """

    def __init__(self, run: Run) -> None:
        """Create the views of ``run``."""
        self.logs = LogReader(run)
        self._run = run
        self._epochs = epochs_in(run.cell)
        external = {name: cls for name, (_, cls) in installed_views().items()}
        self._classes = external | BUILT_IN
        self._views: dict[str, PanelView] = {}

    def moment(self) -> RunMoment:
        """Return the current moment, from which payloads are computed."""
        run, state = self._run, self._run.state
        stop = stopping(run, state)
        return RunMoment(run, state, stop, time.time(), self._epochs, self.logs)

    def payloads(self, moment: RunMoment, heavy: bool) -> dict[str, object]:
        """Return the payloads of all views that are ``heavy``, or of all others, by name."""
        found = {}
        for name, cls in list(self._classes.items()):
            if cls.heavy != heavy:
                continue
            try:
                view = self._views.get(name) or self._views.setdefault(name, cls())
                found[name] = view.payload(moment)
            except Exception:
                if name in BUILT_IN:
                    raise
                LOG.exception("The panel view %r failed, and is not shown", name)
                del self._classes[name]
        return found
