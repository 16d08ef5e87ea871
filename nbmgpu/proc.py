"""What Linux tells a process of itself (man proc): the files it has open, and its own memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SELF = Path("/proc/self")


def open_files() -> Iterator[str]:
    """Yield what each open descriptor of this process stands for, mostly a path."""
    for fd in os.listdir(SELF / "fd"):
        with suppress(OSError):  # another thread has closed it, or it was this listing
            yield os.readlink(SELF / "fd" / fd)


def maps() -> str:
    """Return the table of this process's memory, a line for each part.

    Raises:
        OSError: there is no such table here.
    """
    return (SELF / "maps").read_text()


def anonymous(table: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and rights (``rw-p``) of the parts of ``maps()`` that are no file's."""
    for line in table.splitlines():
        span, rights, _, _, inode = line.split(None, 5)[:5]
        if inode == "0":
            low, high = (int(address, 16) for address in span.split("-"))
            yield low, high, rights
