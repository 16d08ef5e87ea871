"""What the processes of a run leave behind: other processes, files in ``/dev/shm``, and sockets.

Python's resource tracker and torch's manager of shared memory remove what those whom they serve
have left there, as soon as these are gone.  Some files neither knows: where ``/dev/shm`` is full,
torch leaves the file that it could not fill, and joblib's workers have semaphores and folders
there until their process ends by itself, which ranks do not.  Their names say which process made
them, and that may have ended long ago (``ForkedPids``).

Loader workers hand tensors over through sockets in a folder that only a worker which ends by
itself removes.  So all processes of a run have one folder for them, which goes with the run.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.process import current_process
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")

CARETAKERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
"""Parts of the commands of processes that remove what others have left."""

PATIENCE = 1.0
"""Seconds that caretakers have for it once all others are gone."""

LIMIT = 5.0
"""Seconds after which what cannot be killed is left alone."""


MADE_BY = re.compile(r"(?:torch_|sem\.loky-|joblib_memmapping_folder_)(\d+)[_-]")
"""How the names of such files begin, and which process made them."""

PIDS = 1 << 22
"""Linux gives pids below this."""


def put_sockets_into(folder: str) -> None:
    """Let this process, and all that ``multiprocessing`` starts below it, put sockets there.

    An empty name stands for a folder of each process's own, as always.
    """
    if folder:
        current_process()._config["tempdir"] = folder  # type: ignore[attr-defined]


class ForkedPids:
    """The pids of all that is forked below this process from now on, whether it lives or not.

    Each process marks its own in memory that all share: a byte for every pid there can be,
    of which only the pages that have a mark are ever there.
    """

    def __init__(self) -> None:
        """Begin to take note."""
        self._marks = mmap.mmap(-1, PIDS)
        os.register_at_fork(after_in_child=self._mark)

    def _mark(self) -> None:
        self._marks[os.getpid()] = 1

    def __contains__(self, pid: int) -> bool:
        """Tell whether a process of that pid was forked."""
        return pid < PIDS and bool(self._marks[pid])


def sweep(ranks: Iterable[int], forked: ForkedPids, since: float) -> None:
    """Kill every process below this one, and remove what these and others have left.

    Args:
        ranks: the pids of ranks, which have ended.
        forked: the pids of what they have forked; torchrun's ranks are no forks of ours.
        since: when the run began; an older file is somebody else's.
    """
    pids, begun = set(ranks), time.monotonic()
    while (left := psutil.Process().children(recursive=True)) and time.monotonic() < begun + LIMIT:
        pids |= {process.pid for process in left}
        patient = time.monotonic() < begun + PATIENCE
        for process in left:
            with suppress(psutil.Error):
                if not (patient and _takes_care(process)):
                    process.kill()
        psutil.wait_procs(left, timeout=0.5)
    for path in SHARED_MEMORY.glob("*"):
        made = MADE_BY.match(path.name)
        if made and ((pid := int(made[1])) in pids or pid in forked):
            _remove(path, since)


def _takes_care(process: psutil.Process) -> bool:
    command = " ".join(process.cmdline())
    return any(part in command for part in CARETAKERS)


def _remove(path: Path, since: float) -> None:
    """Remove a file of this run; containers that share ``/dev/shm`` have the same pids."""
    with suppress(OSError):
        found = path.stat()
        if found.st_uid == os.geteuid() and found.st_mtime >= since:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
