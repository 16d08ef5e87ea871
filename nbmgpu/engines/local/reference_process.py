"""The process beside the ranks that runs the cell on one device; see ``nbmgpu.rank.reference``."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from nbmgpu.runs import reference
from nbmgpu.runs.run import Run


class ReferenceProcess:
    """The reference of one run, a child of this process; at most one runs at a time."""

    def __init__(self, run: Run) -> None:
        """Prepare that of ``run``; nothing is started yet."""
        self._run = run
        self._pid: int | None = None

    def start(self, target: Callable[[], NoReturn]) -> None:
        """Fork the process, which calls ``target``."""
        self._pid = os.fork()
        if self._pid == 0:
            os.setsid()  # as ranks do: SIGINT to the kernel's group is not for it
            target()

    def is_alive(self) -> bool:
        """Return whether it runs; ranks record nothing for one that has ended."""
        if self._pid is None:
            return False
        found, _ = os.waitpid(self._pid, os.WNOHANG)
        if found:
            self._pid = None
            reference.end(self._run.folder)
            return False
        return True

    def is_needed(self) -> bool:
        """Return whether it runs, and still compares."""
        return self.is_alive() and reference.is_verified_now(self._run.folder)

    def kill(self) -> None:
        """End it; nothing of it is needed."""
        if self.is_alive() and self._pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = None
            with suppress(OSError):  # the folder was removed
                reference.end(self._run.folder)
