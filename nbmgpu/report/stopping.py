"""Whether a run was asked to stop."""

from __future__ import annotations

from typing import Literal

from nbmgpu.runs.events import ACTIVE_STATES, RunState
from nbmgpu.runs.run import Run
from nbmgpu.runs.stop_request import read_stop_request

Stopping = Literal["", "asked", "forced"]
"""Whether the run was asked to stop, and how."""


def stopping(run: Run, state: RunState) -> Stopping:
    """Return whether the run, which is in ``state``, was asked to stop, and how."""
    if state not in ACTIVE_STATES:
        return ""
    states: dict[str, Stopping] = {"": "", "stop": "asked", "force": "forced"}
    return states[read_stop_request(run.folder)]
