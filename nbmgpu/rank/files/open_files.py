"""Flushes the files that a cell has not closed.

A kernel keeps running, so a file that a cell leaves open is written at the latest when it is
closed.  A rank exits without teardown, and buffered output would be lost.
"""

from __future__ import annotations

import gc
import io
import os
import stat
from contextlib import suppress
from typing import Any

FILE: Any = io.IOBase.__mro__[1]
"""The base class of all files; an isinstance check takes a tenth of that of ``io.IOBase``."""

LOGGERS = frozenset({"SummaryWriter"})
"""Classes that buffer records for minutes, and have a ``flush()``."""

CLOSED = frozenset({"ZipFile", "GzipFile", "BZ2File", "LZMAFile"})
"""Classes of files whose end is written on close; they cannot be sent back open."""


def flush() -> None:
    """Flush all files and loggers, as long as there is disk space."""
    found = [each for each in gc.get_objects() if _may_buffer(type(each))]
    # The outermost first: the text wrapper, then the compressor, then the file.
    for each in sorted(found, key=lambda each: type(each).__name__ != "TextIOWrapper"):
        # These may be the user's classes: an error in them must not cost results.
        with suppress(Exception):
            if type(each).__name__ in CLOSED:
                each.close()
            elif type(each).__name__ in LOGGERS or _is_written_to(each):
                each.flush()


def _may_buffer(kind: type) -> bool:
    return issubclass(kind, FILE) or kind.__name__ in LOGGERS | CLOSED


def _is_written_to(file: Any) -> bool:
    """Return whether it is a file on disk: a write to a pipe may block forever."""
    if file.closed or not file.writable():
        return False
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
