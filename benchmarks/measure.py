"""What was measured: one figure of one tool in one round, and how rounds are interleaved."""

from __future__ import annotations

import mmap
import re
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
        unit: ``s``, ``ms``, ``GiB`` or ``x``; none for what is counted.
        more_is_better: as of what two ranks gain; else less is.
    """

    work: str
    tool: str
    value: float
    unit: str = "s"
    more_is_better: bool = False


@dataclass(frozen=True)
class Failed:
    """A tool that could not do a work, and why: it keeps its row in the table called ``work``."""

    work: str
    tool: str
    reason: str


@dataclass(frozen=True)
class Phases:
    """Where the time of one run went, in seconds by phase; ``case`` is what varies in a table."""

    work: str
    case: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class Call:
    """A function of a profile: how often it was called, and its seconds, own and with callees."""

    name: str
    calls: int
    own: float
    cumulative: float


@dataclass(frozen=True)
class Profile:
    """What the kernel's process did in one run: the functions that took most, the first first."""

    work: str
    calls: tuple[Call, ...]


Result = Figure | Failed | Phases | Profile


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
    """Let every tool do a work once per round, in turn; one that fails is left out afterwards.

    ``work`` is the first table of those that ``once`` gives figures for: who fails stands there.
    """
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
                results.append(Failed(work, rival.name, reason(error)))
    return results


ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
RAISED = re.compile(r"[\w.]*(Error|Exception|Timeout)\b")


def reason(error: Exception) -> str:
    """Return one line that says what went wrong, of a message that may be a whole traceback."""
    lines = [line.strip() for line in ESCAPE.sub("", str(error)).splitlines()]
    lines = [line for line in lines if line] or [type(error).__name__]
    # From the line's beginning: source lines in a traceback name exceptions, too.
    raised = [at for at, line in enumerate(lines) if RAISED.match(line)]
    at = raised[-1] if raised else len(lines) - 1
    said = lines[at]
    if said.endswith(":") and at + 1 < len(lines):  # its message begins on the next line
        said += f" {lines[at + 1]}"
    return said if len(said) <= LONGEST else f"{said[:LONGEST]} ..."


LONGEST = 160
"""Characters of a reason in a table."""


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

SCRIPT, CONTROL = "a script's own print()", "nothing printed"
"""The same steps in plain scripts: what printing takes by itself, and how far figures stray."""


def ratio(some: Sequence[float], others: Sequence[float]) -> float:
    """Return how much more ``some`` are: within rounds where both have all, for machines drift."""
    if len(some) == len(others):
        return statistics.median(a / b for a, b in zip(some, others, strict=True))
    return statistics.median(some) / statistics.median(others)
