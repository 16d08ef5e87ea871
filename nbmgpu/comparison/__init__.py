"""Strategies, or numbers of ranks, compared on a cell: what each does in a few steps of it.

``request`` reads what is asked for, ``contest`` makes the runs, ``trial`` measures one of
them, and a ``Comparison`` is what comes out.
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
from nbmgpu.kernel.notebook_context import Surroundings
from nbmgpu.runs.failure import plain

from .comparison import Comparison
from .request import of
from .runner import Contest
from .trial import Trial

if TYPE_CHECKING:
    from .live_comparison import LiveComparison

__all__ = [
    "Comparison",
    "Contest",
    "Trial",
    "compare",
    "conduct",
    "conduct_awaited",
    "scale",
]

POLL = 0.05
"""Seconds between looks at the runs of a comparison."""

last_comparison: Comparison | None = None
"""The newest comparison of this process."""


def compare(source: str, namespace: dict[str, Any] | None = None, **options: Any) -> Comparison:
    """Run some steps of ``source`` on one device and with several strategies, and compare them.

    Nothing comes back to ``namespace``: its objects are as they were, whatever the runs did.

    Args:
        source: Python, with IPython's magics and shell lines if one likes.
        namespace: where names are read; the caller's globals by default.
        options: as of ``nbmgpu.run``, and ``strategies=("ddp", "zero2", "fsdp")``; ``steps``
            is 20 if it is not given.

    Returns:
        A row for each run, that of one device first, also for those that failed or were refused.

    Raises:
        OptionError: an option is unknown or has a wrong value.
        NbmgpuError, SyntaxError: the source cannot be run anywhere.
        KeyboardInterrupt: it was stopped; ``nbmgpu.last_comparison`` has what there is.
    """
    return conduct(_contest("compare", source, namespace, options))


def scale(source: str, namespace: dict[str, Any] | None = None, **options: Any) -> Comparison:
    """Run some steps of ``source`` on several numbers of ranks, and compare them.

    Args:
        source, namespace: as of ``compare``.
        options: as of ``nbmgpu.run``, and ``gpus=(1, 2, 4)`` are numbers of ranks.

    Returns:
        As of ``compare``.

    Raises:
        OptionError: an option is unknown or has a wrong value.
        NbmgpuError, SyntaxError: the source cannot be run anywhere.
        KeyboardInterrupt: it was stopped; ``nbmgpu.last_comparison`` has what there is.
    """
    return conduct(_contest("scale", source, namespace, options))


def _contest(
    kind: str, source: str, namespace: dict[str, Any] | None, options: dict[str, Any]
) -> Contest:
    if namespace is None:
        namespace = sys._getframe(2).f_globals
    return Contest(of(kind, **options), source, namespace, Surroundings.current())


def conduct(contest: Contest) -> Comparison:
    """Make all runs of ``contest`` while the caller waits; Ctrl-C ends it and keeps its rows."""
    with showing(contest) as output:
        for _ in contest.course():
            output.take()
            time.sleep(POLL)
    return contest.comparison


async def conduct_awaited(contest: Contest) -> Comparison:
    """Do what ``conduct`` does, awaiting between looks at the runs."""
    with showing(contest) as output:
        for _ in contest.course():
            output.take()
            await asyncio.sleep(POLL)
    return contest.comparison


@contextmanager
def showing(contest: Contest) -> Iterator[LiveComparison]:
    """Show ``contest`` here while it goes on, and what has come out afterwards."""
    global last_comparison
    from .live_comparison import LiveComparison

    refuse_inside_a_rank()
    output = LiveComparison(contest)
    output.start()
    try:
        with interrupts_to(contest.stop):
            yield output
    finally:
        if contest.trials:
            last_comparison = contest.comparison
        output.finish()
    if contest.stopped:
        rows = "nbmgpu.last_comparison has its rows" if contest.trials else "there are no rows yet"
        raise plain(KeyboardInterrupt(f"the comparison was stopped; {rows}"))
