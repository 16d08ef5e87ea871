"""Measurements, one per tool and round, and the interleaving of rounds."""

from __future__ import annotations

import mmap
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .kernels import CellError, Kernel
from .tools import Tool


@dataclass(frozen=True)
class Figure:
    """A value of one tool in one round.

    Attributes:
        workload: what was measured; the title of its table.
        tool: the name of the tool.
        value: the figure, in ``unit``.
        unit: ``s``, ``ms``, ``GiB`` or ``x``; empty for counts.
        more_is_better: as for a speed-up; otherwise less is better.
    """

    workload: str
    tool: str
    value: float
    unit: str = "s"
    more_is_better: bool = False


@dataclass(frozen=True)
class Failed:
    """A tool that failed on a workload, and why; it keeps its row in that table."""

    workload: str
    tool: str
    reason: str


@dataclass(frozen=True)
class Phases:
    """The seconds of one run by phase; ``case`` is what varies in a table."""

    workload: str
    case: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class Call:
    """A function in a profile: its calls, and its seconds without and with callees."""

    name: str
    calls: int
    own: float
    cumulative: float


@dataclass(frozen=True)
class Profile:
    """A profile of the kernel's process in one run: the slowest functions first."""

    workload: str
    calls: tuple[Call, ...]


Result = Figure | Failed | Phases | Profile


@contextmanager
def kernel() -> Iterator[Kernel]:
    """Yield a kernel with a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        running = Kernel(Path(folder))
        try:
            yield running
        finally:
            running.close()


@contextmanager
def kernels(tools: Sequence[Tool], before: str = "") -> Iterator[dict[Tool, Kernel]]:
    """Yield a kernel for each tool, in which ``before`` and the tool's setup were run."""
    running: dict[Tool, Kernel] = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        try:
            for number, tool in enumerate(tools):
                subfolder = Path(folder) / str(number)
                subfolder.mkdir()
                running[tool] = Kernel(subfolder)
                for cell in filter(None, (before, tool.setup)):
                    running[tool].run(cell)
            yield running
        finally:
            for each in running.values():
                each.close()


def interleaved(
    rounds: int,
    tools: Sequence[Tool],
    workload: str,
    once: Callable[[Tool], Sequence[Figure]],
) -> list[Result]:
    """Run a workload once per round with every tool, in turn; omit tools that have failed.

    Args:
        rounds: the number of rounds.
        tools: all tools; each round begins with the next one.
        workload: the table in which failures are listed, the first of those of ``once``.
        once: runs the workload with a tool and returns its figures.
    """
    results: list[Result] = []
    failed: set[str] = set()
    for round_ in range(rounds):
        turn = tools[round_ % len(tools) :] + tools[: round_ % len(tools)]
        for tool in turn:
            if tool.name in failed:
                continue
            try:
                results += once(tool)
            except (CellError, TimeoutError) as error:
                failed.add(tool.name)
                results.append(Failed(workload, tool.name, reason(error)))
    return results


ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
RAISED = re.compile(r"[\w.]*(Error|Exception|Timeout)\b")


def reason(error: Exception) -> str:
    """Return the line of an error message, possibly a whole traceback, that names the error."""
    lines = [line.strip() for line in ESCAPE.sub("", str(error)).splitlines()]
    lines = [line for line in lines if line] or [type(error).__name__]
    # At the beginning of a line: source lines in a traceback contain exception names, too.
    raised = [at for at, line in enumerate(lines) if RAISED.match(line)]
    at = raised[-1] if raised else len(lines) - 1
    text = lines[at]
    if text.endswith(":") and at + 1 < len(lines):  # its message begins on the next line
        text += f" {lines[at + 1]}"
    return text if len(text) <= MAX_REASON_LENGTH else f"{text[:MAX_REASON_LENGTH]} ..."


MAX_REASON_LENGTH = 160
"""Maximum characters of a reason in a table."""


def touch(gib: float) -> None:
    """Write to ``gib`` GiB of memory, and free it.

    A virtual machine may have returned this memory to its host.  Getting it again can take seconds,
    which are not the tool's.  Large pages are used if available: memory that is freed in small
    pages is only reused for small pages.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, max(1, int(gib * 2**30)), flags=private) as memory:
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


@dataclass(frozen=True)
class Summary:
    """The rounds of one tool and workload: median and quartiles."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Summarize ``values`` of at least one round."""
        if len(values) < 2:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


BASE = "torchrun"
"""The tool that the others are compared with."""

BY_HAND = "by hand"
"""The same parallelism written by hand: nbmgpu is compared with it where a table has it."""

INDEPENDENT = "two processes without communication"
INDEPENDENT_RANKS = "two ranks of nbmgpu without communication"
"""Upper bounds of the machine, as rows of a table."""

SCRIPT, CONTROL = "a script's own print()", "nothing printed"
"""The same steps in plain scripts: the cost of printing alone, and the measurement error."""


def ratio(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the ratio of ``some`` to ``others``, within rounds if both have all of them."""
    if len(some) == len(others):
        return statistics.median(a / b for a, b in zip(some, others, strict=True))
    return statistics.median(some) / statistics.median(others)
