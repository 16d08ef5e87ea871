"""A rank's standard streams: one log file, with what is stderr's marked.

Everything goes to the file descriptor, so output of C code and child processes
is there too, nothing is dropped, and no pipe can fill up.
"""

from __future__ import annotations

import faulthandler
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def redirect(log: Path) -> None:
    """Send stdout and stderr to ``log``, at once; stdin gives end of file.

    A crash in compiled code leaves the Python lines that led to it there.
    """
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)
    os.close(null)
    sys.stdout = _stream(1)
    sys.stderr = _stream(2)
    faulthandler.enable(file=2, all_threads=False)


def _stream(fd: int) -> io.TextIOWrapper:
    """Return a stream without a buffer: no death of the process can take what was written."""
    raw: Any = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors="replace", write_through=True)


class MarkedStderr(io.TextIOBase):
    """Writes whole pieces to the log and says where in it they are."""

    encoding = "utf-8"

    def __init__(self, log: Path, mark: Callable[[int, int], None]) -> None:
        """Write to fd 2, which is ``log``; ``mark(start, end)`` is told the bytes."""
        self._log = log
        self._mark = mark
        self._pending = ""

    def writable(self) -> bool:
        """Say yes."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor below, for child processes."""
        return 2

    def isatty(self) -> bool:
        """Say no: the log is a file."""
        return False

    def write(self, text: str) -> int:
        """Write ``text``, at the latest when its line ends."""
        self._pending += text
        if "\n" in text or "\r" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write what is pending.  The mark goes first, so that no reader misses it."""
        if not self._pending:
            return
        data, self._pending = self._pending.encode("utf-8", "replace"), ""
        sys.stdout.flush()
        start = log_size(self._log)
        self._mark(start, start + len(data))
        os.write(2, data)


def log_size(log: Path) -> int:
    """Return how many bytes have been logged."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
