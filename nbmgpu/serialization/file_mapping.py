"""Memory-mapped files that use huge pages where the file is in memory.

Creating huge pages takes a fifth of the time of small ones, and first reads take a third.  Linux
6.1 and later collapses 512 small pages into one of 2 MiB on request, whatever the system settings
are (madvise(2), ``MADV_COLLAPSE``).  A process benefits if address and file offset have the same
alignment, so files are mapped at such addresses.  Elsewhere small pages are used.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
import time

import numpy as np

from nbmgpu.system.procfs import LARGE_PAGE, MADV_COLLAPSE

from .threaded_copy import copy, map_in_threads

PRIVATE, SHARED = mmap.ACCESS_COPY, mmap.ACCESS_WRITE
"""Whether writes to a mapping are seen by this process only, or by all that map the file."""

CHUNK = 4 * LARGE_PAGE
"""Bytes that a thread writes at a time."""

SECONDS_PER_LARGE_PAGE, EXTRA_SECONDS = 0.0005, 0.03
"""Seconds that small pages of the same size take, and the total that may be spent beyond that.

Where free memory is fragmented, or the host of a virtual machine must provide it first, small
pages are faster.
"""

MAX_FAILURES = 8
"""After so many failures the remaining pages stay small."""

ALREADY_LARGE_SECONDS = 1e-4
"""Collapsing a page that is huge already takes less than this many seconds."""

MAP_FIXED = 0x10
"""``MAP_FIXED`` of ``sys/mman.h``: map at exactly this address and replace what is there."""


_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]


class FileMap:
    """The first bytes of a file, mapped as ``view`` for as long as it is referenced."""

    def __init__(self, fd: int, nbytes: int, access: int) -> None:
        """Map ``nbytes`` of ``fd``, ``PRIVATE`` or ``SHARED``; the file must be at least as long.

        Raises:
            OSError, ValueError: the file cannot be mapped; an empty one never can.
        """
        laid = _map_aligned(fd, nbytes, access) if nbytes >= LARGE_PAGE else None
        self._map = laid or mmap.mmap(fd, nbytes, access=access)
        self._start = -_address(self._map) % LARGE_PAGE if laid else 0
        self._next_page, self._failures = 0, 0 if laid else MAX_FAILURES
        self.view = memoryview(self._map)[self._start : self._start + nbytes]

    def make_large_pages(self, first: int, end: int) -> None:
        """Collapse bytes ``first`` to ``end``, multiples of ``LARGE_PAGE``, into huge pages.

        Each huge page needs at least one small page to exist already.

        Raises:
            OSError: the kernel is too old, or there is no contiguous free memory.
        """
        start = ctypes.c_void_p(_address(self._map) + self._start + first)
        if _libc.madvise(
            start, ctypes.c_size_t(end - first), MADV_COLLAPSE
        ):  # ctypes releases the GIL
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def collapse_next_page(self) -> float:
        """Collapse the next small pages into a huge page; return the seconds that it took.

        Returns 0 when nothing is left to do.  A page may succeed after the previous one has failed.
        """
        begun = time.monotonic()
        while self._next_page + LARGE_PAGE <= self.view.nbytes and self._failures < MAX_FAILURES:
            try:
                self.make_large_pages(self._next_page, self._next_page + LARGE_PAGE)
            except OSError:
                self._failures += 1
            self._next_page += LARGE_PAGE
            if (took := time.monotonic() - begun) > ALREADY_LARGE_SECONDS:
                return took
        return 0.0


class NewPageWriter:
    """Writes to the part of an in-memory file that has no pages yet."""

    def __init__(self, fd: int, mapped: FileMap, first: int, end: int) -> None:
        """Write to bytes ``first`` to ``end`` of ``fd``, which ``mapped`` covers."""
        self._fd, self._map = fd, mapped
        self._next, self._last = _round_up(first), end // LARGE_PAGE * LARGE_PAGE
        self._time_budget = EXTRA_SECONDS  # of all threads; updates may race

    def write(self, at: int, data: memoryview) -> None:
        """Write ``data`` at offset ``at``, behind everything written before."""
        end = at + data.nbytes
        cuts = [at, *range(_round_up(at + 1), end, CHUNK), end]
        pages = [(max(self._next, _round_up(low)), min(_round_up(high), self._last))
                 for low, high in itertools.pairwise(cuts)]  # fmt: skip
        self._next = max(self._next, _round_up(end))
        pieces = [data[low - at : high - at] for low, high in itertools.pairwise(cuts)]
        map_in_threads(self._write_piece, cuts[:-1], pieces, pages)

    def _write_piece(self, at: int, data: memoryview, pages: tuple[int, int]) -> None:
        """Write a piece; ``pages`` is the part of it that can be huge pages."""
        first, end = pages
        low, high = (min(max(page, at), at + data.nbytes) for page in pages)
        if first < end and self._make_large_pages(first, end):
            copy(self._map.view[low:high], data[low - at : high - at])
        else:
            low = high = at
        write_at(self._fd, data[: low - at], at)
        write_at(self._fd, data[high - at :], high)

    def _make_large_pages(self, first: int, end: int) -> bool:
        if self._time_budget < 0:
            return False
        begun = time.thread_time()
        try:
            for page in range(first, end, LARGE_PAGE):
                write_at(self._fd, b"\0", page)
            self._map.make_large_pages(first, end)
        except OSError:
            self._time_budget = -1
            return False
        self._time_budget += SECONDS_PER_LARGE_PAGE * (end - first) / LARGE_PAGE - (
            time.thread_time() - begun
        )
        return True


def write_at(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write ``data`` to a file at offset ``at``."""
    view = memoryview(data).cast("B")
    while view:  # Linux writes at most 2 GiB at a time
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def _round_up(at: int) -> int:
    return -(-at // LARGE_PAGE) * LARGE_PAGE


def _map_aligned(fd: int, nbytes: int, access: int) -> mmap.mmap | None:
    """Map a file at an address with huge page alignment, inside memory that is freed with it."""
    if sys.platform != "linux":
        return None
    kind = mmap.MAP_PRIVATE if access == PRIVATE else mmap.MAP_SHARED
    try:
        held = mmap.mmap(-1, nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # address space limit
        return None
    start = _address(held) + -_address(held) % LARGE_PAGE
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(start, nbytes, rights, kind | MAP_FIXED, fd, 0) == start:
        return held
    _failed.append(held)
    return None


_failed: list[mmap.mmap] = []
"""Kept alive: after a failed call, another thread may have mapped memory in the released range."""


def _address(held: mmap.mmap) -> int:
    return int(np.frombuffer(held, np.uint8).__array_interface__["data"][0])
