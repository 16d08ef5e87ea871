"""The processes of one tool, and the shared memory that they use: found, ended and removed."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
STAGES = ((signal.SIGINT, 1.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, 5.0))
"""Signals, and the seconds in which processes may end after each."""

TRACKERS_TIMEOUT = 5.0
"""Seconds in which resource trackers may end, once all other processes have ended."""

POLL_INTERVAL = 0.05
"""Seconds between two checks of the processes."""


class ToolProcesses:
    """The processes that have ``variable=value`` in their environment, and their shared memory.

    Processes are identified by pid and creation time, so no other process that has got a recorded
    pid is signalled.  A file in ``/dev/shm`` is theirs if one of them has mapped or opened it, and
    if it has been changed since this object was created.
    """

    def __init__(self, variable: str, value: str) -> None:
        """Begin to own what is started from now on with ``variable=value``."""
        self._variable, self._value = variable, value
        self._begun = time.time()
        self._inodes: set[int] = set()

    def find(self) -> set[psutil.Process]:
        """Return those that are alive."""
        found = set()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get(self._variable) == self._value:
                    found.add(process)
        return found

    def end(self) -> None:
        """End all of them, and remove the files that they leave in ``/dev/shm``.

        Resource trackers of multiprocessing get no signal until all others have ended: a tracker
        ends when its last client has, and removes the semaphores that killed clients have left.
        """
        for number, seconds in STAGES:
            if not self._signal_workers(number, seconds):
                break
        deadline = time.monotonic() + TRACKERS_TIMEOUT
        while (trackers := self.find()) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)
        _send(signal.SIGKILL, trackers)
        self._remove_files()

    def _signal_workers(self, number: signal.Signals, seconds: float) -> bool:
        """Signal all processes but trackers; return whether any is alive after ``seconds``."""
        deadline = time.monotonic() + seconds
        signalled: set[psutil.Process] = set()
        while True:
            alive = self.find()
            self._record_files(alive)
            workers = {process for process in alive if not _is_tracker(process)}
            if not workers:
                return False
            if time.monotonic() > deadline:
                return True
            _send(number, workers - signalled)  # also those that have been started meanwhile
            signalled |= workers
            time.sleep(POLL_INTERVAL)  # not psutil.wait_procs(), which would reap our own children

    def _record_files(self, processes: Iterable[psutil.Process]) -> None:
        """Record the files in ``/dev/shm`` that ``processes`` have mapped or open.

        By their inodes: ``sem_open`` maps a file under a temporary name, and renames it.
        """
        for process in processes:
            folder = Path(f"/proc/{process.pid}")
            with suppress(OSError):  # the process has ended
                for line in (folder / "maps").read_text().splitlines():
                    _, _, _, _, inode, *path = line.split(maxsplit=5)
                    if path and _is_shared_memory(path[0]):
                        self._inodes.add(int(inode))
                for link in (folder / "fd").iterdir():
                    if _is_shared_memory(str(link.readlink())):
                        self._inodes.add(link.stat().st_ino)

    def _remove_files(self) -> None:
        """Remove the recorded files; usually their processes or a tracker have done that."""
        with suppress(OSError):  # a system without /dev/shm
            for path in SHARED_MEMORY.iterdir():
                with suppress(OSError):  # another process has removed it
                    status = path.lstat()
                    if status.st_ino in self._inodes and status.st_ctime >= self._begun:
                        path.unlink()


def _is_tracker(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return "resource_tracker import main" in " ".join(process.cmdline())
    return False


def _is_shared_memory(path: str) -> bool:
    return path.startswith(f"{SHARED_MEMORY}/")


def _send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.Error):
            process.send_signal(number)
