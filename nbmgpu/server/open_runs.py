"""Runs that somebody looks into: each stays open for a while, read as far as it has gone."""

from __future__ import annotations

import threading
from collections import OrderedDict

from nbmgpu.report.curves import CurveLine, CurveRequest, curve_detail
from nbmgpu.report.log_pages import LogPage, LogReader, LogRequest
from nbmgpu.runs.run import Run

from .run_folders import open_run, own_file, run_folder

KEPT = 8
"""Runs that stay open: their curves, and where the lines of their logs begin."""


class OpenRun:
    """One run.  One request after the other is answered."""

    def __init__(self, run: Run) -> None:
        """Read ``run``."""
        self._run = run
        self._logs = LogReader(run)
        self._lock = threading.Lock()

    def page(self, request: LogRequest) -> LogPage:
        """Return the page of the logs that is asked for, as the files are now."""
        with self._lock:
            for rank in range(self._run.record.world_size):
                refuse_link(self._run, rank)
            self._run.poll()  # it tells which bytes are stderr, and when they were written
            return self._logs.page(request)

    def curve_detail(self, request: CurveRequest) -> CurveLine | None:
        """Return a part of a metric in more detail; None where there is none."""
        with self._lock:
            self._run.poll()
            return curve_detail(self._run.view, request)


class OpenRuns:
    """The runs that were looked into last.  Threads may share it."""

    def __init__(self) -> None:
        """Have none open."""
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._lock = threading.Lock()

    def page(self, name: str, request: LogRequest) -> LogPage:
        """Return a page of the logs of the run ``name``.

        Raises:
            NoSuchRunError: there is none, or its logs lead elsewhere.
        """
        return self._get(name).page(request)

    def curve_detail(self, name: str, request: CurveRequest) -> CurveLine | None:
        """Return a part of a metric of the run ``name``.

        Raises:
            NoSuchRunError: there is none.
        """
        return self._get(name).curve_detail(request)

    def _get(self, name: str) -> OpenRun:
        run_folder(name)  # it may have been deleted since it was opened
        with self._lock:
            run = self._open.pop(name, None) or OpenRun(open_run(name))
            self._open[name] = run
            while len(self._open) > KEPT:
                self._open.popitem(last=False)
        return run


def refuse_link(run: Run, rank: int) -> None:
    """Raise NoSuchRunError if the log of ``rank`` is not a file of the run's own."""
    try:
        own_file(run.folder, run.log_path(rank))
    except FileNotFoundError:
        pass  # the rank has not begun
