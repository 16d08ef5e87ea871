"""Ends a rank early for the cell to start again with whole batches: see ``--exact auto``.

The cell starts again from the bundle, as if nothing had happened.  So nothing may have left the
ranks: no file is written, no process started, no connection made.  Python's audit events tell.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NoReturn

import torch

from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Restart
from nbmgpu.runs.number_topics import DIFFERS, MAY_DIFFER

from .reporting.shard_topics import OTHER_NUMBERS

WITHIN = 60.0
"""Seconds after which a cell does not start again: it would lose more than it gains."""

WITHIN_OF_ERROR = 10.0
"""The same after an exception, which most often is one that the cell has on one device, too."""

OF_MEMORY = (MemoryError, torch.OutOfMemoryError)
"""Exceptions that whole batches make worse."""

EXIT_CODE = 75
"""What ranks exit with: ``EX_TEMPFAIL`` of sysexits.h, a failure after which to try again."""

EFFECTS = frozenset({
    "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate",
    "os.posix_spawn", "os.system", "socket.connect", "sqlite3.connect",
    "subprocess.Popen",
})  # fmt: skip
"""Audit events (https://docs.python.org/3/library/audit_events.html) of what others can see."""

TEMPORARY = "tmp", "pymp-", "torchinductor_", "nbmgpu-"
"""How names of temporary files of Python, torch and nbmgpu begin."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class RestartRequest:
    """Asks for the restart at the first notice about numbers, if the cell has had no effects.

    Attributes:
        effect: the first effect of the cell on others, as a predicate; empty if there is none.
    """

    def __init__(self, events: EventWriter, folder: Path, shadows: Path) -> None:
        """Watch the cell from now on.

        Args:
            events: of this rank.
            folder: the run folder, whose files are not the cell's.
            shadows: a folder in it, with what the cell writes on ranks other than 0.
        """
        self.effect = ""
        self._events = events
        self._began = time.monotonic()
        self._process = os.getpid()
        self._shadows = str(shadows)
        folders = folder, Path.home() / ".cache", "/dev", "/proc", sys.prefix
        temporary = os.path.join(os.path.realpath(tempfile.gettempdir()), "")
        self._private = (
            *(os.path.join(os.path.realpath(path), "") for path in folders),
            *(f"{temporary}{prefix}" for prefix in TEMPORARY),
        )
        sys.addaudithook(self._audit)

    @property
    def possible(self) -> bool:
        """Whether the cell can still start again."""
        is_rank = os.getpid() == self._process  # and no worker of a loader
        return is_rank and not self.effect and self._seconds < WITHIN

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def consider(self, topic: str) -> str:
        """End this rank if a notice of ``topic`` is a reason to start again, and it is possible.

        Returns:
            Why it is not possible, as a sentence; empty for any other topic.
        """
        if topic not in OTHER_NUMBERS or os.getpid() != self._process:
            return ""
        if self.possible:
            self._exit((DIFFERS | MAY_DIFFER)[topic])
        obstacle = self.effect or f"has run for more than {WITHIN:.0f} s"
        return f"The cell does not start again by itself, as it {obstacle}."

    def consider_error(self, error: BaseException) -> None:
        """End this rank if the cell may have failed because it had a shard of a batch.

        It may have the size of a batch written out, or end a loop by what is in a shard.
        """
        is_of_cell = isinstance(error, Exception) and not isinstance(error, OF_MEMORY)
        if is_of_cell and self.possible and self._seconds < WITHIN_OF_ERROR:
            line = f"{type(error).__name__}: {error}".partition("\n")[0]
            self._exit(f"raises {line.rstrip('.')}")

    def _exit(self, reason: str) -> NoReturn:
        self._events.emit(Restart, reason=reason)
        os._exit(EXIT_CODE)  # the kernel ends the others, which may wait for this one

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if self.effect:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITING and self._is_of_cell(path):
                self.effect = f"has written to {os.fspath(path)}"
        elif event in EFFECTS:
            # Workers of a loader hand over tensors through sockets that are files.
            what = args[1] if event == "socket.connect" else args[0]
            if self._is_of_cell(what):
                self.effect = f"has called {event}({what!r})"

    def _is_of_cell(self, path: Any) -> bool:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str | os.PathLike):
            return not isinstance(path, int)  # a file that is open already
        real = os.path.abspath(path)
        return real.startswith(self._shadows) or not real.startswith(self._private)
