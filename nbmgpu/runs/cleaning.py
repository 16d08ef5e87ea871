"""Removes the folders of runs that are over, by age and size."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass

from nbmgpu.errors import OptionError

from .events import ACTIVE_STATES
from .folder_size import measure
from .run import Run

UNCERTAIN = {*ACTIVE_STATES, "lost"}
"""States that a run may still leave, where its processes cannot be seen."""


@dataclass(frozen=True)
class RunSize:
    """A run, and the bytes that its folder takes on the disk."""

    run: Run
    nbytes: int


@dataclass(frozen=True)
class CleanCriteria:
    """Which runs to remove: those that meet all criteria.

    Attributes:
        older: seconds since they were started, at least.
        larger: bytes of their folders, at least.
        keep_tagged: whether runs with tags stay.
    """

    older: float = 0.0
    larger: int = 0
    keep_tagged: bool = False


def sizes(runs: Iterable[Run]) -> list[RunSize]:
    """Return the size of each run."""
    return [RunSize(run, measure(run.folder).nbytes) for run in runs]


def meeting(found: Iterable[RunSize], criteria: CleanCriteria) -> list[RunSize]:
    """Return the runs that are over and meet the criteria."""
    before = time.time() - criteria.older
    return [
        each
        for each in found
        if each.run.record.created <= before
        and each.nbytes >= criteria.larger
        and not (criteria.keep_tagged and each.run.labels.tags)
        and is_over(each.run)
    ]


def is_over(run: Run) -> bool:
    """Return whether ``run`` is over; one of another machine is, only if its events say so."""
    here = run.record.kernel.host in ("", socket.gethostname())
    return run.over if here else run.state not in UNCERTAIN


def awaits_write_back(run: Run) -> bool:
    """Return whether no notebook has the results of ``run`` yet, and one can still get them."""
    return run.to_collect or run.has_uncollected_files


def remove(found: Iterable[RunSize]) -> list[RunSize]:
    """Remove the folders of runs; return those that are removed.

    What another process or the operating system keeps from being removed is left out.
    """
    removed = []
    for each in found:
        try:
            each.run.delete()
        except (OptionError, OSError):
            continue
        removed.append(each)
    return removed
