"""This process's open files and memory mappings, from ``/proc/self`` (man proc)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SELF = Path("/proc/self")

MADV_COLLAPSE = 25
"""``madvise`` advice: make one large page of small ones.  Since Linux 6.1 (``linux/mman.h``)."""

LARGE_PAGE = 2 << 20
"""Bytes of a large page on x86 and most of ARM; where it is larger, small pages stay."""


def open_files() -> Iterator[str]:
    """Yield the target of each open file descriptor of this process, mostly a path."""
    for fd in os.listdir(SELF / "fd"):
        with suppress(OSError):  # closed by another thread, or it was this listing
            yield os.readlink(SELF / "fd" / fd)


def maps() -> str:
    """Return the memory mappings of this process, one per line.

    Raises:
        OSError: the system has no such table.
    """
    return (SELF / "maps").read_text()


def mapped_file(table: str, address: int) -> str:
    """Return the path of the file that is mapped at ``address``; empty if none is, or it is gone.

    Args:
        table: the mappings, as ``maps()`` returns them.
        address: in this process.
    """
    for low, high, (*_, path) in _mappings(table):
        if low <= address < high:
            return path if os.path.isfile(path) else ""
    return ""


def anonymous(table: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and permissions (``rw-p``) of the mappings in ``table`` without a file.

    Args:
        table: the mappings, as ``maps()`` returns them.
    """
    for low, high, (permissions, _, _, inode, _) in _mappings(table):
        if inode == "0":
            yield low, high, permissions


def _mappings(table: str) -> Iterator[tuple[int, int, list[str]]]:
    """Yield start and end of each mapping, and permissions, offset, device, inode and path."""
    for line in table.splitlines():
        span, *fields = line.split(None, 5)
        low, high = (int(address, 16) for address in span.split("-"))
        yield low, high, [*fields, ""][:5]
