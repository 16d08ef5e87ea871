"""What the cell has left open.

A notebook's process lives on, and a file that a cell leaves open is written when it is closed,
at the latest.  A rank exits without any teardown: what is in buffers would be lost.
"""

from __future__ import annotations

import gc
import io
import os
import stat
from contextlib import suppress
from typing import Any

FILE: Any = io.IOBase.__mro__[1]
"""The base of all files; asking it, and not the abstract class, takes a tenth of the time."""

TRACKERS = frozenset({"SummaryWriter"})
"""Classes that gather records for minutes, and have a ``flush()``."""

ENDED = frozenset({"ZipFile", "GzipFile", "BZ2File", "LZMAFile"})
"""Classes of files whose end is written when they are closed; they cannot come home open."""


def flush() -> None:
    """Write what is buffered of all files and trackers, as far as there is room for it."""
    found = [each for each in gc.get_objects() if _may_buffer(type(each))]
    # What is written to others first: text, then what compresses it, then the file.
    for each in sorted(found, key=lambda each: type(each).__name__ != "TextIOWrapper"):
        # Anybody's class: what it raises must not cost results.
        with suppress(Exception):
            if type(each).__name__ in ENDED:
                each.close()
            elif type(each).__name__ in TRACKERS or _is_written_to(each):
                each.flush()


def _may_buffer(kind: type) -> bool:
    return issubclass(kind, FILE) or kind.__name__ in TRACKERS | ENDED


def _is_written_to(file: Any) -> bool:
    """Tell whether it is a file of a disk: to write to a pipe may take for ever."""
    if file.closed or not file.writable():
        return False
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
