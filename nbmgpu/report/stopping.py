"""Whether a run was asked to stop."""

from __future__ import annotations

from typing import Literal

from nbmgpu.runs.events import ACTIVE_STATES, RunState
from nbmgpu.runs.folder import STOP_FILE
from nbmgpu.runs.run import Run

Stopping = Literal["", "asked", "forced"]
"""Whether the run was asked to stop, and how."""


def stopping(run: Run, state: RunState) -> Stopping:
    """Return whether the run, which is in ``state``, was asked to stop, and how."""
    if state not in ACTIVE_STATES:
        return ""
    try:
        request = (run.folder / STOP_FILE).read_text()
    except FileNotFoundError:
        return ""
    return "forced" if request.strip() == "force" else "asked"
