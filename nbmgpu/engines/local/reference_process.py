"""The process beside the ranks that runs the cell on one device; see ``nbmgpu.rank.reference``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing, suppress

from nbmgpu.runs import reference
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Verified
from nbmgpu.runs.run import Run

PATIENCE = 2.0
"""Times ``--verify`` for which a run waits for its reference once all ranks have ended."""

LATE = "the one device has taken no step in this time"
"""Why nothing was compared, where ranks have taken steps."""


class ReferenceProcess:
    """The reference of one run, a child of this process; at most one runs at a time."""

    def __init__(self, run: Run) -> None:
        """Prepare that of ``run``; nothing is started yet."""
        self._run = run
        self._pid: int | None = None
        self._awaited_since: float | None = None

    def start(self, target: Callable[[], None]) -> None:
        """Fork the process, which calls ``target``."""
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()  # as ranks do: SIGINT to the kernel's group is not for it
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                target()
            finally:
                os._exit(1)
        self._pid = pid

    def poll(self) -> bool:
        """Return whether it runs, and still compares; ranks record for no other."""
        if self._pid is None:
            return False
        with suppress(ChildProcessError):
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                self._pid = None
                reference.end(self._run.folder)
                return False
        return reference.is_verified_now(self._run.folder)

    def is_awaited(self) -> bool:
        """Return whether to wait for it, now that all ranks have ended."""
        now = time.monotonic()
        self._awaited_since = self._awaited_since or now
        is_late = now - self._awaited_since > PATIENCE * self._run.record.options.verify
        return self.poll() and not is_late

    def report_late(self) -> None:
        """Report a reference that has compared nothing, although ranks have taken steps."""
        path = self._run.events_path("reference")
        if self.poll() and not path.exists() and reference.has_steps(self._run.folder):
            with suppress(OSError), closing(EventWriter(path, LAUNCHER)) as events:
                events.emit(Verified, steps=0, is_whole=False, reason=LATE)

    def kill(self) -> None:
        """Kill it; nothing of it is needed.

        Its resource tracker stays, which removes its shared memory, and so do workers of its
        loaders until they notice: ``clean_up`` ends whatever is left with the run.
        """
        pid, self._pid = self._pid, None
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # the launcher, which ends soon, does not wait for it
        reference.end(self._run.folder)
