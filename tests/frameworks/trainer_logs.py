"""What a trainer has logged and written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

CLOCK = ("runtime", "per_second", "preparation_time")
"""Endings of the names of values that are measured times."""


def logged(trainer: Any, without: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """Return the log of a Trainer without measured times, and ``without`` some keys."""
    history = trainer.state.log_history
    return [
        {k: v for k, v in row.items() if not k.endswith(CLOCK) and k not in without}
        for row in history
    ]


FLOPS = frozenset({"total_flos"})
"""Depends on padding, which differs between a batch and its slices."""


def written(folder: Path) -> list[str]:
    """Return the paths of the files in a folder, without the time and process in names of logs."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(re.sub(r"(events\.out\.tfevents).*", r"\1", path) for path in paths)
