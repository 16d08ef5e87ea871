"""Caches the summary of a finished run on many ranks, whose events take seconds to read.

``summary.json`` in the run folder may be deleted at any time, like ``line.json`` (``digest``).
"""

from __future__ import annotations

import dataclasses
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmgpu.runs.events import ACTIVE_STATES
from nbmgpu.runs.folder import write_atomically
from nbmgpu.runs.run import MANY_RANKS, Run

from .digest import fingerprint
from .summary import summary_html, summary_text

SUMMARY_FILE = "summary.json"


@dataclass(frozen=True)
class Summary:
    """A summary, for terminals and for notebooks."""

    text: str
    html: str


def summary_of(run: Run) -> Summary:
    """Return the summary of ``run``, from the cache if possible."""
    if run.record.world_size <= MANY_RANKS:
        return Summary(summary_text(run), summary_html(run))
    try:
        seen = fingerprint(run.folder)  # taken first: events written meanwhile invalidate it
    except OSError:  # the folder was removed
        seen = []
    if seen and (kept := _read(run.folder, seen)) is not None:
        return kept
    summary = Summary(summary_text(run), summary_html(run))
    if seen and run.view.restart is None and run.state not in ACTIVE_STATES:
        content = {"seen": seen, **dataclasses.asdict(summary)}
        with suppress(OSError):  # the disk is full, or the run is being deleted
            write_atomically(run.folder / SUMMARY_FILE, json.dumps(content))
    return summary


def _read(folder: Path, seen: list[Any]) -> Summary | None:
    try:
        kept = json.loads((folder / SUMMARY_FILE).read_bytes())
        text, html, of = kept["text"], kept["html"], kept["seen"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    is_valid = of == seen and isinstance(text, str) and isinstance(html, str)
    return Summary(text, html) if is_valid else None
