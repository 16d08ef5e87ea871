"""Removes what the processes of a run leave behind: other processes, and files in ``/dev/shm``.

Python's resource tracker and torch's shared memory manager remove the files of the processes they
serve as soon as these are gone.  Some files are unknown to both: where ``/dev/shm`` is full, torch
leaves the file that it could not fill, and joblib's workers keep semaphores and folders there until
their process exits by itself, which ranks do not do.  The names of such files contain the pid of
the process that made them, which may have ended long ago (``ForkedPids``).
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from nbmgpu.runs.folder import SHADOWS, SOCKETS

SHARED_MEMORY = Path("/dev/shm")

RESOURCE_TRACKERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""Parts of the command lines of processes that remove the files of others."""

TRACKER_TIMEOUT = 10.0
"""Seconds that resource trackers have for it once all other processes are gone.

They take milliseconds, and end by themselves; on a busy machine, seconds.  What a tracker leaves
that is killed has names that nobody else knows (``/dev/shm/psm_...``).
"""

KILL_TIMEOUT = 5.0
"""Seconds after which a process that cannot be killed is left alone."""

CREATED_BY = re.compile(r"(?:torch_|sem\.loky-|joblib_memmapping_folder_)(\d+)[_-]")
"""How the names of such files begin; the group is the pid of the process that made them."""

MAX_PID = 1 << 22
"""Linux assigns pids below this."""


class ForkedPids:
    """The pids of all processes forked below this one from now on, alive or not.

    Each process marks its own pid in shared memory: a byte for every possible pid, of which only
    the pages with a mark are ever allocated.
    """

    def __init__(self) -> None:
        """Start recording."""
        self._marks = mmap.mmap(-1, MAX_PID)
        os.register_at_fork(after_in_child=self._mark)

    def _mark(self) -> None:
        self._marks[os.getpid()] = 1

    def __contains__(self, pid: int) -> bool:
        """Return whether a process with that pid was forked."""
        return pid < MAX_PID and bool(self._marks[pid])


def clean_up(ranks: Iterable[int], forked: ForkedPids, since: float) -> None:
    """Kill every process below this one, and remove the files that these and others have left.

    Args:
        ranks: the pids of ranks, which have ended.
        forked: the pids of what they have forked; torchrun's ranks are not forked from here.
        since: when the run was created; older files are not its own.
    """
    pids, now = set(ranks), time.monotonic()
    deadline, spared_until = now + KILL_TIMEOUT, now + TRACKER_TIMEOUT
    while (left := psutil.Process().children(recursive=True)) and now < deadline:
        pids |= {process.pid for process in left}
        killed = [each for each in left if now > spared_until or not _is_resource_tracker(each)]
        for process in killed:
            with suppress(psutil.Error):
                process.kill()
        if not killed:  # trackers are left, which the system may have kept from running
            deadline = spared_until + KILL_TIMEOUT
        psutil.wait_procs(left, timeout=0.5)
        now = time.monotonic()
    for path in SHARED_MEMORY.glob("*"):
        match = CREATED_BY.match(path.name)
        if match and ((pid := int(match[1])) in pids or pid in forked):
            _remove(path, since)


def remove_folders(run_folder: Path) -> None:
    """Remove what killed ranks have left on the disk: copies of files, and sockets."""
    shutil.rmtree(run_folder / SHADOWS, ignore_errors=True)
    link = run_folder / SOCKETS
    with suppress(OSError):
        shutil.rmtree(os.readlink(link), ignore_errors=True)
        link.unlink()


def _is_resource_tracker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended
        command = " ".join(process.cmdline())
        return any(part in command for part in RESOURCE_TRACKERS)
    return False


def _remove(path: Path, since: float) -> None:
    """Remove a file of this run; containers that share ``/dev/shm`` may have the same pids."""
    with suppress(OSError):
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mtime >= since:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
