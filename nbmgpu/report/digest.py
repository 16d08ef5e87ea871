"""The line of a run that is over, kept in its folder, so that nobody reads all events again.

``line.json`` may be removed at any time: whoever needs it makes it anew.  It counts only as
long as no event was added since, and for the version of nbmgpu that wrote it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from nbmgpu._version import __version__
from nbmgpu.runs.run import Run, write_atomically

from .run_line import RunLine, run_line

DIGEST_FILE = "line.json"


def fingerprint(folder: Path) -> list[Any]:
    """Return what changes whenever the run in ``folder`` says something."""
    with os.scandir(folder / "events") as entries:
        found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    return [__version__, *sorted([name, stat.st_size, stat.st_mtime_ns] for name, stat in found)]


def read_digest(folder: Path, seen: list[Any]) -> RunLine | None:
    """Return the line kept in ``folder``, if it was made when the folder looked like ``seen``."""
    try:
        kept = json.loads((folder / DIGEST_FILE).read_bytes())
        if kept["seen"] != seen:
            return None
        line = kept["line"]
        points = [(step, value) for step, value in line["curve"]]
        return RunLine(**line | {"curve": points})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def line_of(run: Run) -> RunLine:
    """Return the line of ``run``: the kept one, or else it is made, and kept if the run is over."""
    try:
        kept = read_digest(run.folder, fingerprint(run.folder))
    except OSError:
        kept = None
    return kept or write_digest(run)


def write_digest(run: Run) -> RunLine:
    """Return the line of ``run``; keep it in the folder if the run is over."""
    try:
        seen = fingerprint(run.folder)  # taken first: what is written meanwhile makes it stale
    except OSError:
        return run_line(run)  # somebody has removed the folder
    line = run_line(run)
    if line.over:
        content = {"seen": seen, "line": dataclasses.asdict(line)}
        try:
            write_atomically(run.folder / DIGEST_FILE, json.dumps(content, separators=(",", ":")))
        except OSError:
            pass  # a full disk, or the run is being deleted: the line is made again
    return line
