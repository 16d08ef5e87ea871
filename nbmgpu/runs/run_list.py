"""The runs of this user, and the search for one by the beginning of its id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from nbmgpu.errors import OptionError, format_message

from .folder import runs_root
from .run import Run

FIRST_RUN = "%%mgpu above a cell that trains"
"""What an error suggests if there is no run yet."""

NAMED = 5
"""Maximum number of runs that an error lists for an ambiguous prefix."""


def list_runs(begins: str = "") -> list[Run]:
    """Return the runs whose id starts with ``begins``, newest first, without unreadable folders."""
    return list(iter_runs(begins))


def iter_runs(begins: str = "") -> Iterator[Run]:
    """Yield the runs of ``list_runs``: a few of the newest need not wait for all others."""
    folders = [folder for folder in runs_root().glob("*") if folder.name.startswith(begins)]
    for folder in sorted(folders, reverse=True):
        try:
            yield Run(folder)
        except (OSError, ValueError, TypeError):
            continue


def find_run(name: str = "") -> Run:
    """Return the run whose id starts with ``name``, else the newest one that is called so.

    With an empty ``name`` that is the newest run.

    Raises:
        OptionError: no run matches, or several ids do.
    """
    found = list(itertools.islice(iter_runs(name), NAMED if name else 1))
    if not found:
        found = list(itertools.islice((r for r in iter_runs() if r.labels.name == name), 1))
    if not found:
        what = f"There is no run {name!r}" if name else "There is no run yet"
        raise OptionError(format_message(what, instead="%mgpu runs" if name else FIRST_RUN))
    if name and len(found) > 1 and found[0].id != name:
        ids = ", ".join(run.id for run in found)
        raise OptionError(
            format_message(f"{name!r} names several runs: {ids}", instead="a longer prefix")
        )
    return found[0]
