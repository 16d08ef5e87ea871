"""Caches open runs, so that their events are read only once."""

from __future__ import annotations

import threading
from collections import OrderedDict

from nbmgpu.report.curves import CurveLine, CurveRequest, curve_detail
from nbmgpu.report.log_pages import LogPage, LogReader, LogRequest
from nbmgpu.runs.run import Run

from .run_folders import open_run, own_file, run_folder

MAX_CACHED = 8
"""Maximum number of open runs, each with its curves and the line index of its logs."""


class OpenRun:
    """One open run. Requests are processed one at a time."""

    def __init__(self, run: Run) -> None:
        """Open ``run``."""
        self._run = run
        self._logs = LogReader(run)
        self._lock = threading.Lock()

    def page(self, request: LogRequest) -> LogPage:
        """Return a page of the current logs."""
        with self._lock:
            for rank in range(self._run.record.world_size):
                refuse_link(self._run, rank)
            self._run.poll()  # events say which bytes are stderr, and when they were written
            return self._logs.page(request)

    def curve_detail(self, request: CurveRequest) -> CurveLine | None:
        """Return a range of a metric at a higher resolution, or None if it has no points."""
        with self._lock:
            self._run.poll()
            return curve_detail(self._run.view, request)


class OpenRuns:
    """Cache of the most recently used runs. Thread-safe."""

    def __init__(self) -> None:
        """Create an empty cache."""
        self._open: OrderedDict[str, OpenRun] = OrderedDict()
        self._lock = threading.Lock()

    def page(self, name: str, request: LogRequest) -> LogPage:
        """Return a page of the logs of the run ``name``.

        Raises:
            NoSuchRunError: It does not exist, or its logs are symbolic links.
        """
        return self._get(name).page(request)

    def curve_detail(self, name: str, request: CurveRequest) -> CurveLine | None:
        """Return a range of a metric of the run ``name``.

        Raises:
            NoSuchRunError: It does not exist.
        """
        return self._get(name).curve_detail(request)

    def _get(self, name: str) -> OpenRun:
        run_folder(name)  # it may have been deleted since it was opened
        with self._lock:
            run = self._open.pop(name, None) or OpenRun(open_run(name))
            self._open[name] = run
            while len(self._open) > MAX_CACHED:
                self._open.popitem(last=False)
        return run


def refuse_link(run: Run, rank: int) -> None:
    """Raise NoSuchRunError if the log of ``rank`` is not a regular file in the run's folder."""
    try:
        own_file(run.folder, run.log_path(rank))
    except FileNotFoundError:
        pass  # the rank has not started
