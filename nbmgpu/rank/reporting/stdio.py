"""Standard streams of a rank: one log file, in which the parts from stderr are marked.

All output goes to the file descriptor, so that output of C code and child processes is included,
nothing is dropped, and no pipe can fill up.  A line is written when it ends, a partial line
within a tenth of a second: print() passes its arguments to the stream one by one, and a write to
the file for each of them would cost as much as a small training step.
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
from typing import Any, TypeVar

from nbmgpu.runs.preallocation import DISK_FULL

Stream = TypeVar("Stream", bound=io.TextIOWrapper)

_stdout: _Stdout | None = None
_on_full_disk: Callable[[OSError], object] | None = None
_flushing = threading.Lock()

KEPT = 200
"""Characters of the text of a step that are compared with that of one device."""

FLUSH_INTERVAL = 0.1
"""Seconds between calls of ``flush_partial_line``."""


class _LogFile(io.FileIO):
    """Drops output that does not fit on the disk: a cell should not fail by what it prints."""

    def write(self, data: Any) -> int:
        """Write ``data``, or as much of it as fits."""
        try:
            return super().write(data)
        except OSError as error:
            drop(error)
            return len(data)


class _Stdout(io.TextIOWrapper):
    """Keeps the beginning of what was printed since it was last taken."""

    printed = ""

    def write(self, text: str) -> int:
        """Write ``text``."""
        if len(self.printed) < KEPT:
            self.printed += text
        return super().write(text)


def take_printed() -> str:
    """Return what was printed since the last call, up to ``KEPT`` characters or a line more."""
    if _stdout is None:
        return ""
    text, _stdout.printed = _stdout.printed, ""
    return text


def drop(error: OSError) -> None:
    """Report that output was dropped because the disk is full; raise any other ``error``."""
    if _on_full_disk is None or error.errno not in DISK_FULL:
        raise error
    _on_full_disk(error)


def on_full_disk(report: Callable[[OSError], object]) -> None:
    """Call ``report`` with the error of a full disk, and drop the output."""
    global _on_full_disk
    _on_full_disk = report


def redirect(log: Path) -> None:
    """Redirect stdout and stderr to ``log``, and stdin to the null device.

    A crash in compiled code writes the Python traceback there.
    """
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)
    os.close(null)
    global _stdout
    is_first = _stdout is None
    sys.stdout = _stdout = _stream(1, _Stdout)
    sys.stderr = _stream(2, io.TextIOWrapper)
    if is_first:
        os.register_at_fork(
            before=_before_fork, after_in_parent=_flushing.release, after_in_child=_flushing.release
        )
    faulthandler.enable(file=2, all_threads=False)


def _stream(fd: int, kind: type[Stream]) -> Stream:
    """Return a line-buffered stream: a killed process loses at most a partial line."""
    # Buffered: writes of two threads to a raw file may be reordered.
    buffered = io.BufferedWriter(_LogFile(fd, "w", closefd=False))
    return kind(buffered, encoding="utf-8", errors="replace", line_buffering=True)


def flush_partial_line() -> None:
    """Write a partial line of stdout, as long as there is disk space.

    Any thread may call it.  This does not hold for stderr, whose marks are not thread-safe, or for
    a stream that a cell has assigned to ``sys.stdout``.
    """
    with _flushing, suppress(OSError, ValueError):
        if _stdout is not None:
            _stdout.flush()


def flush() -> None:
    """Write all buffered output, as long as there is disk space."""
    flush_partial_line()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _before_fork() -> None:
    """Flush, as a child would write the buffers again, and block flushes of other threads.

    A lock that another thread holds during a fork would stay locked in the child forever.
    """
    flush()
    _flushing.acquire()


class MarkedStderr(io.TextIOBase):
    """Writes lines to the log, and reports their position in it."""

    encoding = "utf-8"

    def __init__(self, log: Path, mark: Callable[[int, int], None]) -> None:
        """Write to fd 2, which is ``log``; ``mark(start, end)`` gets the byte range."""
        self._log = log
        self._mark = mark
        self._pending = ""

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the underlying file descriptor, for child processes."""
        return 2

    def isatty(self) -> bool:
        """Return False: the log is a file."""
        return False

    def write(self, text: str) -> int:
        """Write ``text``, at the latest at the end of its line."""
        self._pending += text
        if "\n" in text or "\r" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write the pending text, after its mark, so that no reader misses the mark."""
        if not self._pending:
            return
        data, self._pending = self._pending.encode("utf-8", "replace"), ""
        flush_partial_line()
        start = log_size(self._log)
        self._mark(start, start + len(data))
        try:
            os.write(2, data)
        except OSError as error:
            drop(error)


def log_size(log: Path) -> int:
    """Return the size of the log in bytes."""
    try:
        return log.stat().st_size
    except FileNotFoundError:
        return 0
