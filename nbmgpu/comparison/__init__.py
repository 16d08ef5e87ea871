"""Compares strategies, or numbers of ranks or nodes, over a few optimizer steps of one cell.

``request`` parses the options, ``runner`` makes the runs, ``trial`` measures one of them, and
``comparison`` holds the result.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbmgpu.kernel.in_rank import refuse_inside_a_rank
from nbmgpu.kernel.interrupts import interrupts_to
from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.runs.failure import without_traceback

from .comparison import Comparison
from .request import from_keywords
from .runner import ComparisonRunner
from .trial import Trial

if TYPE_CHECKING:
    from .live_comparison import LiveComparison

__all__ = [
    "Comparison",
    "ComparisonRunner",
    "Trial",
    "compare",
    "execute",
    "execute_async",
    "scale",
]

POLL = 0.05
"""Seconds between updates while a comparison runs."""

last_comparison: Comparison | None = None
"""The newest comparison of this process."""


def compare(source: str, namespace: dict[str, Any] | None = None, **options: Any) -> Comparison:
    """Run some steps of ``source`` on one device and with several strategies, and compare them.

    Nothing is written back: the objects of ``namespace`` stay as they are.

    Args:
        source: Python source; IPython magics and shell lines are allowed.
        namespace: where the cell's names are read; by default the caller's globals.
        options: those of ``nbmgpu.run``, and ``strategies=("ddp", "zero2", "fsdp")``; ``steps``
            defaults to 20.

    Returns:
        A row per run, starting with one device; failed and refused runs are included.

    Raises:
        OptionError: an option is unknown or invalid.
        NbmgpuError, SyntaxError: the source cannot run at all.
        KeyboardInterrupt: it was stopped; ``nbmgpu.last_comparison`` has the rows so far.
    """
    return execute(_runner("compare", source, namespace, options))


def scale(source: str, namespace: dict[str, Any] | None = None, **options: Any) -> Comparison:
    """Run some steps of ``source`` on several numbers of ranks or nodes, and compare them.

    Args:
        source: see ``compare``.
        namespace: see ``compare``.
        options: those of ``nbmgpu.run``; ``gpus=(1, 2, 4)`` are numbers of ranks, and
            ``nodes=(1, 2)`` of machines, each with ``gpus`` ranks.

    Returns:
        See ``compare``.

    Raises:
        OptionError: an option is unknown or invalid.
        NbmgpuError, SyntaxError: the source cannot run at all.
        KeyboardInterrupt: it was stopped; ``nbmgpu.last_comparison`` has the rows so far.
    """
    return execute(_runner("scale", source, namespace, options))


def _runner(
    kind: str, source: str, namespace: dict[str, Any] | None, options: dict[str, Any]
) -> ComparisonRunner:
    if namespace is None:
        namespace = sys._getframe(2).f_globals
    return ComparisonRunner(
        from_keywords(kind, **options), source, namespace, NotebookContext.current()
    )


def execute(runner: ComparisonRunner) -> Comparison:
    """Make all runs and block until they are over; an interrupt stops and keeps the rows."""
    with showing(runner) as output:
        for _ in runner.run():
            output.update()
            time.sleep(POLL)
    return runner.comparison


async def execute_async(runner: ComparisonRunner) -> Comparison:
    """Like ``execute``, for a running event loop."""
    with showing(runner) as output:
        for _ in runner.run():
            output.update()
            await asyncio.sleep(POLL)
    return runner.comparison


@contextmanager
def showing(runner: ComparisonRunner) -> Iterator[LiveComparison]:
    """Display the runner's progress, and its result at the end."""
    global last_comparison
    from .live_comparison import LiveComparison

    refuse_inside_a_rank()
    output = LiveComparison(runner)
    output.start()
    try:
        with interrupts_to(runner.stop):
            yield output
    finally:
        if runner.trials:
            last_comparison = runner.comparison
        output.finish()
    if runner.stopped:
        rows = "nbmgpu.last_comparison has its rows" if runner.trials else "there are no rows yet"
        raise without_traceback(KeyboardInterrupt(f"the comparison was stopped; {rows}"))
