"""Files as memory, in large pages where they are memory anyway.

Such pages take a fifth of the time to make, and a third to read for the first time.
Linux 6.1 and later puts one page of 2 MiB in the place of 512 small ones on request, whatever its
settings are (madvise(2), ``MADV_COLLAPSE``).  A process sees it as one page where address and file
begin alike, so files are mapped to such addresses.  Elsewhere, all of it is done in small pages.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from contextlib import suppress

import numpy as np

from nbmgpu.proc import LARGE_PAGE, MADV_COLLAPSE

PRIVATE, SHARED = mmap.ACCESS_COPY, mmap.ACCESS_WRITE
"""Who sees what is written to a map: this process alone, or all who have mapped the file."""

STEP = 4 * LARGE_PAGE
"""Bytes that are asked for at a time."""

FAIR, PATIENCE = 0.002, 0.03
"""Seconds for a step, as small pages would take, and what all steps together may take beyond: where
free memory is in pieces, or a virtual machine's host has it, small pages are quicker."""

FIXED = 0x10
"""``MAP_FIXED`` of ``sys/mman.h``: exactly there, in the place of what is there."""


class FileMap:
    """The first bytes of a file as memory, ``view``, for as long as anybody has it."""

    def __init__(self, fd: int, nbytes: int, access: int) -> None:
        """Map ``nbytes`` of ``fd``, ``PRIVATE`` or ``SHARED``; the file has as many.

        Raises:
            OSError, ValueError: it cannot be mapped; an empty one never can.
        """
        laid = _laid_over(fd, nbytes, access) if nbytes >= LARGE_PAGE else None
        self._map = laid or mmap.mmap(fd, nbytes, access=access)
        self._start = -_address(self._map) % LARGE_PAGE if laid else 0
        self.view = memoryview(self._map)[self._start : self._start + nbytes]

    def make_pages(self, first: int, end: int) -> int:
        """Give bytes of a file in memory, of which it has none yet, large pages.

        Returns:
            The byte up to which that was possible, ``first`` if it was not.
        """
        low = -(-first // LARGE_PAGE) * LARGE_PAGE
        done, late = first, time.monotonic() + PATIENCE
        with suppress(OSError):  # an older system, or no memory in one piece
            for at in range(low, end - LARGE_PAGE + 1, STEP):
                upto = min(at + STEP, end // LARGE_PAGE * LARGE_PAGE)
                for page in range(at, upto, LARGE_PAGE):
                    self.view[page] = 0  # it is not made of nothing
                self._map.madvise(MADV_COLLAPSE, self._start + at, upto - at)
                done, late = upto, late + FAIR
                if time.monotonic() > late:
                    break
        return done


def _laid_over(fd: int, nbytes: int, access: int) -> mmap.mmap | None:
    """Map a file where large pages can begin, over memory that is freed with it."""
    if sys.platform != "linux":
        return None
    kind = mmap.MAP_PRIVATE if access == PRIVATE else mmap.MAP_SHARED
    try:
        held = mmap.mmap(-1, nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # a limit counts it
        return None
    start = _address(held) + -_address(held) % LARGE_PAGE
    call = ctypes.CDLL(None).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    found = call(start, nbytes, rights, kind | FIXED, fd, 0)
    return held if found == start else None


def _address(held: mmap.mmap) -> int:
    return int(np.frombuffer(held, np.uint8).__array_interface__["data"][0])
