"""Identify processes by pid and creation time, so that a reused pid is not mistaken for one."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import psutil

STARTTIME = 19
"""Index of that field in ``/proc/PID/stat`` after the command, in clock ticks (man proc)."""

CREATE_TIME_TOLERANCE = 0.05
"""Seconds by which two readings of one process's creation time may differ, by rounding."""


def creation_time(pid: int) -> float:
    """Return when a process was created, on a clock that setting the system time does not move.

    On Linux: seconds since boot, plus a constant of this boot.  Elsewhere: seconds since the epoch.

    Raises:
        psutil.NoSuchProcess: no process has that pid.
    """
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    ticks = int(status.rpartition(b")")[2].split()[STARTTIME])
    return _boot_offset() + ticks / os.sysconf("SC_CLK_TCK")


@functools.cache
def _boot_offset() -> float:
    """Return a number that differs from boot to boot; clock ticks added to it stay exact."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return 0.0
    return int(boot.replace("-", ""), 16) % 2**16 * 2.0**27


def process_is_alive(pid: int, create_time: float) -> bool:
    """Return whether the process with this pid and creation time runs; zombies do not count."""
    try:
        process = psutil.Process(pid)
        same = abs(creation_time(pid) - create_time) < CREATE_TIME_TOLERANCE
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def own_process() -> dict[str, Any]:
    """Return this process's pid and creation time, as fields of a ``Started`` event."""
    return {"pid": os.getpid(), "create_time": creation_time(os.getpid())}
