"""Memory that is forked from again and again, in large pages.

A fork copies the table of all pages, and the end of the child takes it apart: 57,000 entries with
torch, 12 ms each.  In pages of 2 MiB, which Linux makes of small ones on request, it is a
few.  A child that writes to one still copies 4 KiB alone.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from collections.abc import Iterator

from nbmgpu.system.procfs import LARGE_PAGE, MADV_COLLAPSE, anonymous, maps


class LargePages:
    """The places of this process's memory that could be large pages, taken in turn."""

    def __init__(self) -> None:
        """Look at the memory as it is now."""
        self._waiting: deque[int] = deque()
        self.look_again()

    @property
    def wanted(self) -> bool:
        """Whether there is more to do."""
        return bool(self._waiting)

    def look_again(self) -> None:
        """Begin anew: there may be more memory now."""
        if sys.platform == "linux":
            self._waiting = deque(_places())
            self._advise = ctypes.CDLL(None).madvise

    def turn(self) -> None:
        """Make the next place a large page, if the system does so: some ms at most."""
        place = self._waiting.popleft()
        self._advise(ctypes.c_void_p(place), ctypes.c_size_t(LARGE_PAGE), MADV_COLLAPSE)


def _places() -> Iterator[int]:
    """Yield the aligned addresses of private memory that is no file's."""
    for start, end, rights in anonymous(maps()):
        if rights == "rw-p":
            yield from range(-(-start // LARGE_PAGE) * LARGE_PAGE, end - LARGE_PAGE + 1, LARGE_PAGE)
