"""What Linux tells a process of itself (man proc): the files it has open, and its own memory."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

SELF = Path("/proc/self")

MADV_COLLAPSE = 25
"""Make one large page of small ones: since Linux 6.1, others refuse it (``linux/mman.h``)."""

LARGE_PAGE = 2 << 20
"""Bytes of one, on x86 and on most of ARM; where it is more, small pages stay."""

STARTTIME = 19
"""The place of that field of ``/proc/PID/stat`` after the command, in clock ticks (man proc)."""


def open_files() -> Iterator[str]:
    """Yield what each open descriptor of this process stands for, mostly a path."""
    for fd in os.listdir(SELF / "fd"):
        with suppress(OSError):  # another thread has closed it, or it was this listing
            yield os.readlink(SELF / "fd" / fd)


def began(pid: int) -> float:
    """Return when a process began, by a count that no setting of a clock moves.

    That is in seconds since the boot, and more by a number of this boot.  Elsewhere than on
    Linux: since the epoch.

    Raises:
        psutil.NoSuchProcess: there is none of that pid.
    """
    if sys.platform != "linux":
        return psutil.Process(pid).create_time()
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
    ticks = int(status.rpartition(b")")[2].split()[STARTTIME])
    return _boot() + ticks / os.sysconf("SC_CLK_TCK")


@functools.cache
def _boot() -> float:
    """Return a number that other boots have not; with it, ticks are still exact in a float."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return 0.0
    return int(boot.replace("-", ""), 16) % 2**16 * 2.0**27


def maps() -> str:
    """Return the table of this process's memory, a line for each part.

    Raises:
        OSError: there is no such table here.
    """
    return (SELF / "maps").read_text()


def anonymous(table: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and rights (``rw-p``) of the parts of ``maps()`` that are no file's."""
    for line in table.splitlines():
        span, rights, _, _, inode = line.split(None, 5)[:5]
        if inode == "0":
            low, high = (int(address, 16) for address in span.split("-"))
            yield low, high, rights
