"""Pages of a run's logs: of one rank, of all ranks by time, or of lines that match a search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nbmgpu.runs.run import Run

from .log_file import LogFile
from .merged_log import MergedLog
from .text_format import coloured

ALL = -1
"""The rank of a request for the lines of all ranks."""

MAX_LINES = 2000
"""Maximum lines of a page."""


@dataclass(frozen=True)
class LogSize:
    """The size of a rank's log: lines and bytes."""

    lines: int
    size: int


@dataclass(frozen=True)
class LogRequest:
    """A request for ``count`` lines from ``first`` on, or for the last ones if it is negative.

    ``rank`` is -1 for all ranks.  With ``search``, only lines that contain it count, ignoring
    case.
    """

    rank: int
    first: int
    count: int
    search: str = ""


@dataclass(frozen=True)
class LogLine:
    """A line of a log.

    Attributes:
        rank: which rank wrote it.
        number: its index in that rank's log.
        index: its index in the requested list.
        text: with ANSI colors and no other control characters.
        stderr: whether it was written to stderr.
    """

    rank: int
    number: int
    index: int
    text: str
    stderr: bool


@dataclass(frozen=True)
class LogPage:
    """The lines from ``first`` on, of ``total`` that match the request."""

    rank: int
    search: str
    first: int
    total: int
    lines: list[LogLine]


class LogReader:
    """Reads pages of a run's logs; the caller polls the run."""

    def __init__(self, run: Run) -> None:
        """Read the logs of ``run``."""
        self._run = run
        self._files = [LogFile(run.log_path(rank)) for rank in range(run.record.world_size)]
        self._merged = MergedLog(run.view)

    def sizes(self) -> list[LogSize]:
        """Return the size of each rank's log."""
        for file in self._files:
            file.update()
        return [LogSize(file.lines, file.size) for file in self._files]

    def page(self, request: LogRequest) -> LogPage:
        """Return the requested page; empty if there is none."""
        listing = self._listing(request.rank)
        if request.search:
            kept = self._matching(listing, request.search)
        else:
            kept = np.arange(len(listing[0]))
        count = max(0, min(request.count, MAX_LINES))
        first = request.first if request.first >= 0 else max(0, len(kept) - count)
        chosen = kept[first : first + count]
        lines = self._lines(listing[0][chosen], listing[1][chosen], chosen)
        return LogPage(request.rank, request.search, first, len(kept), lines)

    def _listing(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the ranks and line numbers of all candidate lines, in order."""
        if rank == ALL:
            for file in self._files:
                file.update()
            return self._merged.update([file.ends() for file in self._files])
        if not 0 <= rank < len(self._files):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        file = self._files[rank]
        file.update()
        return np.full(file.lines, rank), np.arange(file.lines)

    def _matching(self, listing: tuple[np.ndarray, np.ndarray], search: str) -> np.ndarray:
        """Return the indices in ``listing`` of lines that contain ``search``."""
        ranks, numbers = listing
        matches = np.zeros(len(ranks), bool)
        for rank in np.unique(ranks).tolist():
            own = ranks == rank
            matches[own] = self._files[rank].contains(search)[numbers[own]]
        return np.flatnonzero(matches)

    def _lines(self, ranks: np.ndarray, numbers: np.ndarray, places: np.ndarray) -> list[LogLine]:
        lines: list[LogLine | None] = [None] * len(ranks)
        for rank in np.unique(ranks).tolist():
            own = np.flatnonzero(ranks == rank)
            file, stderr = self._files[rank], self._run.view.ranks[rank].log.stderr
            texts = file.read(numbers[own])
            for place, number, text in zip(own, numbers[own].tolist(), texts, strict=True):
                is_error = file.start(number) in stderr
                index = int(places[place])
                lines[place] = LogLine(rank, number, index, coloured(text), is_error)
        return [line for line in lines if line is not None]
