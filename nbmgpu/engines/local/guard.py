"""The guard of a detached run: the parent of its launcher, when the fork server is gone.

As the fork server does for other launchers, it reports the end of one that was killed, and ends
what such a launcher leaves behind.  It also lets the run start again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from nbmgpu.engines.restart import start_again
from nbmgpu.runs.run import Run
from nbmgpu.system.parent_death import adopt_orphans

from .ended_launcher import kill_orphans, report_end
from .launcher import remove_data
from .process_environment import ProcessEnvironment

ORPHANS_TIMEOUT = 10.0
"""Seconds in which all that a killed launcher leaves behind is ended."""

GRACE = 2.0
"""Seconds in which what ranks had started may end by itself."""


def guard_launcher(
    folder: Path, environment: ProcessEnvironment, launch: Callable[[int], None]
) -> None:
    """Fork a process that calls ``launch``, and wait for its end.  Both processes return.

    Args:
        folder: the run folder.
        environment: that of the kernel, also for a run that replaces this one.
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
    environment.apply()
    with suppress(OSError, ValueError, TypeError):  # the folder was removed
        run = Run(folder)
        start_again(run)
        remove_data(run)  # which the launcher has left for the new run
    with suppress(ChildProcessError):  # the fork server would end the new run's guard
        while True:
            os.waitpid(-1, 0)
