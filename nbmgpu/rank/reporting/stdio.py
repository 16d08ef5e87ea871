"""A rank's standard streams: one log file, with what is stderr's marked.

Everything goes to the file descriptor, so output of C code and child processes
is there too, nothing is dropped, and no pipe can fill up.  Lines are written at once, what
has no end yet within a tenth of a second: print() gives a stream its arguments one by one,
and a write to the file for each of them would cost as much as a small step of training.
"""

from __future__ import annotations

import faulthandler
import io
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_stdout: io.TextIOWrapper | None = None
_flushing = threading.Lock()

PATIENCE = 0.1
"""Seconds after which ``flush_unfinished`` is to be called again."""


def redirect(log: Path) -> None:
    """Send stdout and stderr to ``log``; stdin gives end of file.

    A crash in compiled code leaves the Python lines that led to it there.
    """
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)
    os.close(null)
    global _stdout
    sys.stdout = _stdout = _stream(1)
    sys.stderr = _stream(2)
    os.register_at_fork(
        before=_stand_still, after_in_parent=_flushing.release, after_in_child=_flushing.release
    )
    faulthandler.enable(file=2, all_threads=False)


def _stream(fd: int) -> io.TextIOWrapper:
    """Return a stream that keeps no line: a death of the process takes at most a piece of one."""
    # Buffered: two threads that write to a raw file may overtake one another.
    buffered = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
    return io.TextIOWrapper(buffered, encoding="utf-8", errors="replace", line_buffering=True)


def flush_unfinished() -> None:
    """Write what was printed without a line end, as far as there is room for it.

    May be called from any thread, which stderr, with its marks, would not survive; nor would
    what a cell may have put in the place of ``sys.stdout``.
    """
    with _flushing, suppress(OSError, ValueError):
        if _stdout is not None:
            _stdout.flush()


def flush() -> None:
    """Write all that is left, as far as there is room for it."""
    flush_unfinished()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _stand_still() -> None:
    """Write all that is left, which a child would write once more, and let no other thread begin.

    A lock that another thread holds while this one forks would be held in the child for ever.
    """
    flush()
    _flushing.acquire()


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
        flush_unfinished()
        start = log_size(self._log)
        self._mark(start, start + len(data))
        os.write(2, data)


def log_size(log: Path) -> int:
    """Return how many bytes have been logged."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
