"""Ends what a session of tests has started, also where a timeout has ended it without teardown."""

from __future__ import annotations

import functools
import os
import secrets
import subprocess
import sys

VARIABLE = "NBMGPU_TEST_SESSION"
"""Environment variable that processes of the session inherit, also those in sessions of their own.

Its value is random, so that it identifies them as pids and creation times would; daemons of Slurm
and Ray start processes whose pids no fixture learns.
"""

GUARD = """
import os, sys, time
import psutil

variable, value, parent = sys.argv[1], sys.argv[2], int(sys.argv[3])

def left():
    for process in psutil.process_iter():
        try:
            if process.environ().get(variable) != value:
                continue
            yield process
            parent = process.parent()
            if parent is not None and parent.name().startswith("slurmstepd"):  # clears its own
                yield parent
        except psutil.Error:
            pass

while os.getppid() == parent:
    time.sleep(0.2)
deadline = time.monotonic() + 30
while (found := list(left())) and time.monotonic() < deadline:  # they may start others meanwhile
    for process in found:
        try:
            process.kill()
        except psutil.Error:
            pass
    time.sleep(0.2)
"""


@functools.cache
def guard_session() -> subprocess.Popen[bytes]:
    """Let a process end all processes that this one starts from now on, once this one has ended."""
    value = secrets.token_hex(16)
    guard = subprocess.Popen(
        [sys.executable, "-c", GUARD, VARIABLE, value, str(os.getpid())],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.environ[VARIABLE] = value  # after the guard has started, which must not end itself
    return guard
