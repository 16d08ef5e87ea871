"""Starts a run again that has outlived its kernel, after a rank was killed or the run hung."""

from __future__ import annotations

import os
import subprocess
import sys

from nbmgpu.rank.command_line import start_variables
from nbmgpu.runs.run import Run

TIMEOUT = 300.0
"""Seconds within which the new run has been launched; it may then wait in a queue."""


def may_start_again(run: Run) -> bool:
    """Return whether a run that has failed may start again though its kernel has ended.

    Its bundle must stay then.
    """
    values = run.record.options.values
    return bool(values.get("max_restarts")) and not run.is_asked_to_stop


def start_again(run: Run) -> None:
    """Let a process of its own start ``run`` again if there is a reason, and wait for it.

    This process has the environment variables of the kernel.  The new run outlives it, unless
    something ends all of its descendants.
    """
    run.refresh()
    if run.view.ending != "failed" or not may_start_again(run):
        return
    sys.path[:] = dict.fromkeys([*run.record.kernel.search_path(), *sys.path])
    variables, restored = start_variables()
    command = [
        *(sys.executable, "-m", "nbmgpu.kernel.restart_run", str(run.folder)),
        f"--restore-variables={restored}",
    ]
    subprocess.run(
        command,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        timeout=TIMEOUT,
        check=False,  # its log, which is that of the launcher, says why
    )
