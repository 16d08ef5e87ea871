"""The logs of a run by the page: of one rank, of all in the order of time, or what matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nbmgpu.runs.run import Run

from .log_file import LogFile
from .merged_log import Merged
from .text_format import coloured

ALL = -1
"""The rank of a request for the lines of all ranks."""

MAX_LINES = 2000
"""The most lines in a page."""


@dataclass(frozen=True)
class LogSize:
    """How much a rank has written; ``size`` is in bytes and grows with every character."""

    lines: int
    size: int


@dataclass(frozen=True)
class LogRequest:
    """Asks for ``count`` lines from ``first`` on, or for the last ones when that is negative.

    ``rank`` is -1 for all ranks.  With ``search``, only lines that contain it count; case
    does not matter.
    """

    rank: int
    first: int
    count: int
    search: str = ""


@dataclass(frozen=True)
class LogLine:
    """A line: of which rank, its index there and in the whole list, and whether it is stderr.

    ``text`` has no control characters but ANSI colours.
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
    """Reads pages of a run's logs.  The run is polled by whoever owns it."""

    def __init__(self, run: Run) -> None:
        """Read the logs of ``run``."""
        self._run = run
        self._files = [LogFile(run.log_path(rank)) for rank in range(run.record.world_size)]
        self._merged = Merged(run.view)

    def sizes(self) -> list[LogSize]:
        """Return how much each rank has written."""
        for file in self._files:
            file.update()
        return [LogSize(file.lines, file.size) for file in self._files]

    def page(self, request: LogRequest) -> LogPage:
        """Return the page that ``request`` asks for; empty where there is none."""
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
        """Return the ranks and line numbers of all lines in question, in order."""
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
        """Return the places in ``listing`` of lines that contain ``search``."""
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
            file, stderr = self._files[rank], self._run.view.ranks[rank].stderr
            texts = file.read(numbers[own])
            for place, number, text in zip(own, numbers[own].tolist(), texts, strict=True):
                is_error = file.start(number) in stderr
                index = int(places[place])
                lines[place] = LogLine(rank, number, index, coloured(text), is_error)
        return [line for line in lines if line is not None]
