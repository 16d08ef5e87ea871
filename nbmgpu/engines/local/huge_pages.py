"""Turns memory that is forked from again and again into large pages.

A fork copies the page table, and the end of the child tears it down: 57,000 entries with torch,
12 ms each.  With pages of 2 MiB, which Linux makes of small ones on request, it is a few entries.
A child that writes to such a page still copies only 4 KiB.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Iterator

from nbmgpu.system.procfs import LARGE_PAGE, MADV_COLLAPSE, anonymous, maps


class LargePages:
    """The parts of this process's memory that could become large pages, one after another."""

    def __init__(self) -> None:
        """Find them in the memory as it is now."""
        self._pending: deque[int] = deque()
        self.rescan()

    @property
    def pending(self) -> bool:
        """Whether there is more to do."""
        return bool(self._pending)

    def rescan(self) -> None:
        """Start over: there may be more memory now."""
        if sys.platform == "linux":
            self._pending = deque(_addresses())
            self._advise = ctypes.CDLL(None).madvise

    def collapse_next(self) -> None:
        """Make the next part a large page, if the system does so: some ms at most."""
        address = self._pending.popleft()
        self._advise(ctypes.c_void_p(address), ctypes.c_size_t(LARGE_PAGE), MADV_COLLAPSE)


def _addresses() -> Iterator[int]:
    """Yield the aligned addresses in private memory that is not mapped from a file."""
    for start, end, permissions in anonymous(maps()):
        if permissions == "rw-p":
            yield from range(-(-start // LARGE_PAGE) * LARGE_PAGE, end - LARGE_PAGE + 1, LARGE_PAGE)
