"""Caches the list entry of a finished run in its folder, so that its events are read once.

``line.json`` may be deleted at any time. It is valid while no event was added, and for the version
of nbmgpu that wrote it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbmgpu._version import __version__
from nbmgpu.runs.folder import write_atomically
from nbmgpu.runs.run import MANY_RANKS, Run

from .held_memory import with_held_ranks
from .run_line import RunLine, run_line, with_current_labels

DIGEST_FILE = "line.json"

FEW = 8
"""Ranks whose events tell whether a run on many ranks has begun to run its cell."""


def fingerprint(folder: Path) -> list[Any]:
    """Return a value that changes whenever the run in ``folder`` emits an event."""
    with os.scandir(folder / "events") as entries:
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    return [__version__, *sorted([name, stat.st_size, stat.st_mtime_ns] for name, stat in found)]


def read_digest(folder: Path, seen: list[Any]) -> RunLine | None:
    """Return the cached entry in ``folder``, if its fingerprint is ``seen``."""
    try:
        kept = json.loads((folder / DIGEST_FILE).read_bytes())
        if kept["seen"] != seen:
            return None
        return RunLine.from_dict(kept["line"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def line_of(run: Run) -> RunLine:
    """Return the list entry of ``run``, from the cache if possible."""
    try:
        kept = read_digest(run.folder, fingerprint(run.folder))
    except OSError:
        kept = None
    line = with_current_labels(kept or write_digest(run), run.folder)
    return with_held_ranks(line, run.folder)


def quick_line_of(run: Run) -> RunLine:
    """Return the list entry of ``run``; without curve and failure if it has too much to read."""
    if run.record.world_size <= MANY_RANKS:
        return line_of(run)
    with suppress(OSError):  # the folder was removed
        if kept := read_digest(run.folder, fingerprint(run.folder)):
            return with_current_labels(kept, run.folder)
    return with_held_ranks(run_line(Run(run.folder, ranks=FEW)), run.folder)


def write_digest(run: Run) -> RunLine:
    """Return the list entry of ``run``; cache it if the run is over."""
    try:
        seen = fingerprint(run.folder)  # taken first: events written meanwhile invalidate it
    except OSError:
        return run_line(run)  # the folder was removed
    line = run_line(run)
    if line.status.over:
        content = {"seen": seen, "line": dataclasses.asdict(line)}
        try:
            write_atomically(run.folder / DIGEST_FILE, json.dumps(content, separators=(",", ":")))
        except OSError:
            pass  # the disk is full, or the run is being deleted
    return line
