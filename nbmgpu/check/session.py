"""Ends processes that this one has started, each with a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from typing import Any

PATIENCE = 10
"""Seconds that a process has after SIGTERM."""


def end_session(process: subprocess.Popen[Any]) -> None:
    """End a process that leads a session, and all that it has started there."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    with suppress(ProcessLookupError):  # also where the process has ended, but not its children
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
