"""Open runs, shared by the list, the streams and requests, so that events are read only once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from weakref import WeakValueDictionary

from nbmgpu.report.curves import CurveLine, CurveRequest, curve_detail
from nbmgpu.report.log_pages import LogPage, LogReader, LogRequest
from nbmgpu.report.metrics_csv import CsvPage, CsvRequest, csv_page
from nbmgpu.report.node_rows import RankRequest, rows_on_nodes
from nbmgpu.report.rank_rows import RankRow
from nbmgpu.report.stopping import stopping
from nbmgpu.runs.run import Run

from .run_folders import open_run, own_file, run_folder

MAX_CACHED = 16
"""Maximum number of runs that stay open after a request, each with its curves and the line index
of its logs."""


RunKey = tuple[Path, int]
"""The folder of a run, and when its ``run.json`` was written, in ns: another one may follow it."""


class OpenRun:
    """One open run. It is read by one thread at a time."""

    def __init__(self, run: Run) -> None:
        """Open ``run``."""
        self._run = run
        self._logs = LogReader(run)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def current(self) -> Iterator[Run]:
        """Yield the run after reading its new events; other threads wait meanwhile."""
        with self._lock:
            self._run.poll()  # discards the events; only the view is needed
            yield self._run

    def page(self, request: LogRequest) -> LogPage:
        """Return a page of the current logs."""
        # Events say which bytes are stderr, and when they were written.
        with self.current():
            for rank in range(self._run.record.world_size):
                refuse_link(self._run, rank)
            return self._logs.page(request)

    def rank_rows(self, request: RankRequest) -> list[RankRow]:
        """Return the rows of the ranks on some nodes."""
        with self.current() as run:
            stop = bool(stopping(run, run.state))
            return rows_on_nodes(run, request, time.time(), stop)

    def curve_detail(self, request: CurveRequest) -> CurveLine | None:
        """Return a range of a metric at a higher resolution, or None if it has no points."""
        with self.current() as run:
            return curve_detail(run.view, request)

    def tensorboard(self) -> list[str]:
        """Return the folders that TensorBoard reads."""
        with self.current() as run:
            return list(run.view.tensorboard)

    def csv_page(self, request: CsvRequest) -> CsvPage:
        """Return some rows of the metrics as CSV."""
        with self.current() as run:
            return csv_page(run, request)


class OpenRuns:
    """The runs that somebody reads, and the most recently used others. Thread-safe."""

    def __init__(self) -> None:
        """Start without open runs."""
        self._open: WeakValueDictionary[RunKey, OpenRun] = WeakValueDictionary()
        self._recent: OrderedDict[RunKey, OpenRun] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str) -> OpenRun:
        """Return the run ``name``. It stays open while the caller holds it.

        Raises:
            NoSuchRunError: It does not exist.
        """
        key = run_key(name)
        with self._lock:
            if (run := self._open.get(key)) is None:
                run = self._open[key] = OpenRun(open_run(name))
        return run

    def page(self, name: str, request: LogRequest) -> LogPage:
        """Return a page of the logs of the run ``name``.

        Raises:
            NoSuchRunError: It does not exist, or its logs are symbolic links.
        """
        return self.kept(name).page(request)

    def rank_rows(self, name: str, request: RankRequest) -> list[RankRow]:
        """Return the rows of the ranks on some nodes of the run ``name``.

        Raises:
            NoSuchRunError: It does not exist.
        """
        return self.kept(name).rank_rows(request)

    def curve_detail(self, name: str, request: CurveRequest) -> CurveLine | None:
        """Return a range of a metric of the run ``name``.

        Raises:
            NoSuchRunError: It does not exist.
        """
        return self.kept(name).curve_detail(request)

    def csv_page(self, name: str, request: CsvRequest) -> CsvPage:
        """Return some rows of the metrics of the run ``name`` as CSV.

        Raises:
            NoSuchRunError: It does not exist.
        """
        return self.kept(name).csv_page(request)

    def tensorboard(self, name: str) -> list[str]:
        """Return the folders of the run ``name`` that TensorBoard reads.

        Raises:
            NoSuchRunError: It does not exist.
        """
        return self.kept(name).tensorboard()

    def kept(self, name: str) -> OpenRun:
        """Return the run ``name``, and keep it open for the next request.

        Raises:
            NoSuchRunError: It does not exist.
        """
        run, key = self.get(name), run_key(name)
        with self._lock:
            self._recent[key] = run
            self._recent.move_to_end(key)
            while len(self._recent) > MAX_CACHED:
                self._recent.popitem(last=False)
        return run


def run_key(name: str) -> RunKey:
    """Return what identifies the run ``name``, which may have been deleted since it was opened.

    Raises:
        NoSuchRunError: It does not exist.
    """
    folder = run_folder(name)
    try:
        return folder, (folder / "run.json").stat().st_mtime_ns
    except OSError:
        return folder, 0  # opening it says why


def refuse_link(run: Run, rank: int) -> None:
    """Raise NoSuchRunError if the log of ``rank`` is not a regular file in the run's folder."""
    try:
        own_file(run.folder, run.log_path(rank))
    except FileNotFoundError:
        pass  # the rank has not started
