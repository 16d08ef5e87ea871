"""The guard of a detached run: the parent of its launcher, when the fork server is gone.

As the fork server does for other launchers, it reports the end of one that was killed, and ends
what such a launcher leaves behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from nbmgpu.system.parent_death import adopt_orphans

from .ended_launcher import kill_orphans, report_end

ORPHANS_TIMEOUT = 10.0
"""Seconds in which all that a killed launcher leaves behind is ended."""

GRACE = 2.0
"""Seconds in which what ranks had started may end by itself."""


def guard_launcher(folder: Path, launch: Callable[[int], None]) -> None:
    """Fork a process that calls ``launch``, and wait for its end.  Both processes return.

    Args:
        folder: the run folder.
        launch: called with this process's pid.
    """
    adopt_orphans()
    guard = os.getpid()
    launcher = os.fork()
    if launcher == 0:
        launch(guard)
        return
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)  # the launcher decides
    pid, status = os.waitpid(-1, 0)
    while pid != launcher:
        pid, status = os.waitpid(-1, 0)
    kill_orphans(lambda pid: False)
    deadline = time.monotonic() + ORPHANS_TIMEOUT
    while (left := psutil.Process().children()) and time.monotonic() < deadline:
        psutil.wait_procs(left, GRACE)  # what they had started: trackers remove shared memory
        kill_orphans(lambda pid: False)
    if status:
        report_end(folder, os.waitstatus_to_exitcode(status))
