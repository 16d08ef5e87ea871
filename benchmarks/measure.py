"""What was measured: one figure of one tool in one round, and how rounds are interleaved."""

from __future__ import annotations

import mmap
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .kernels import CellFailed, Kernel
from .rivals import Rival


@dataclass(frozen=True)
class Figure:
    """A value of one tool in one round.

    Attributes:
        work: what was done, as the table names it.
        tool: who did it.
        value: the figure, in ``unit``.
        unit: ``s``, ``ms``, ``GiB`` or ``x``.
    """

    work: str
    tool: str
    value: float
    unit: str = "s"


@dataclass(frozen=True)
class Failed:
    """A tool that could not do a work, and why: it keeps its row."""

    work: str
    tool: str
    reason: str


@dataclass(frozen=True)
class Phases:
    """Where the time of one run went, in seconds by phase; ``case`` is what varies in a table."""

    work: str
    case: str
    seconds: dict[str, float]


Result = Figure | Failed | Phases


@contextmanager
def kernel() -> Iterator[Kernel]:
    """Give a kernel with a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        running = Kernel(Path(folder))
        try:
            yield running
        finally:
            running.close()


@contextmanager
def kernels(rivals: Sequence[Rival], before: str = "") -> Iterator[dict[Rival, Kernel]]:
    """Give every tool a kernel in which ``before`` and its setup were run."""
    open_: dict[Rival, Kernel] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for number, rival in enumerate(rivals):
                home = Path(folder) / str(number)
                home.mkdir()
                open_[rival] = Kernel(home)
                for cell in filter(None, (before, rival.setup)):
                    open_[rival].run(cell)
            yield open_
        finally:
            for running in open_.values():
                running.close()


def interleaved(
    rounds: int,
    rivals: Sequence[Rival],
    work: str,
    once: Callable[[Rival], Sequence[Figure]],
) -> list[Result]:
    """Let every tool do a work once per round, in turn; one that fails is left out afterwards."""
    results: list[Result] = []
    out: set[str] = set()
    for round_ in range(rounds):
        turn = rivals[round_ % len(rivals) :] + rivals[: round_ % len(rivals)]
        for rival in turn:
            if rival.name in out:
                continue
            try:
                results += once(rival)
            except (CellFailed, TimeoutError) as error:
                out.add(rival.name)
                last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
                results.append(Failed(work, rival.name, last[0]))
    return results


def touch(gib: float) -> None:
    """Write to so much memory, and free it.

    A virtual machine may have given it back to its host; to get it again can take seconds, which
    nobody who copies has to answer for.  In large pages where there are some: in pieces, it would
    be found again by those alone who need small ones.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, max(1, int(gib * 2**30)), flags=private) as memory:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


@dataclass(frozen=True)
class Summary:
    """The rounds of one tool and work: median, and the middle half of the values."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Sum up ``values``, of at least one round."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


BASE = "torchrun"
"""The tool that others are compared with."""

SILENT, OUR_SILENT = "two processes that do not talk", "two ranks of nbmgpu that do not talk"
"""What the machine allows at most, as rows of a table."""

SCRIPT = "a script's own print()"


def ratio(some: Sequence[float], others: Sequence[float]) -> float:
    """Return how much more ``some`` are: within rounds where both have all, for machines drift."""
    if len(some) == len(others):
        return statistics.median(a / b for a, b in zip(some, others, strict=True))
    return statistics.median(some) / statistics.median(others)
