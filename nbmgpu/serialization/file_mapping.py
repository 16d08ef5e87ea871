"""Files as memory, in large pages where they are memory anyway.

Such pages take a fifth of the time to make, and a third to read for the first time.
Linux 6.1 and later puts one page of 2 MiB in the place of 512 small ones on request, whatever its
settings are (madvise(2), ``MADV_COLLAPSE``).  A process sees it as one page where address and file
begin alike, so files are mapped to such addresses.  Elsewhere, all of it is done in small pages.
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
"""Who sees what is written to a map: this process is_exclusive, or all who have mapped the file."""

CHUNK = 4 * LARGE_PAGE
"""Bytes that a thread writes at a time."""

SECONDS_PER_LARGE_PAGE, EXTRA_SECONDS = 0.0005, 0.03
"""Seconds for a large page, as small ones would take, and what all together may take beyond: where
free memory is in pieces, or a virtual machine's host has it, small pages are quicker."""

MAX_FAILURES = 8
"""After so many refusals the rest stays in small pages."""

ALREADY_LARGE_SECONDS = 1e-4
"""Seconds that no page takes which was large already."""

MAP_FIXED = 0x10
"""``MAP_FIXED`` of ``sys/mman.h``: exactly there, in the place of what is there."""


_libc = ctypes.CDLL(None, use_errno=True)
if sys.platform == "linux":
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]


class FileMap:
    """The first bytes of a file as memory, ``view``, for as long as anybody has it."""

    def __init__(self, fd: int, nbytes: int, access: int) -> None:
        """Map ``nbytes`` of ``fd``, ``PRIVATE`` or ``SHARED``; the file has as many.

        Raises:
            OSError, ValueError: it cannot be mapped; an empty one never can.
        """
        laid = _map_aligned(fd, nbytes, access) if nbytes >= LARGE_PAGE else None
        self._map = laid or mmap.mmap(fd, nbytes, access=access)
        self._start = -_address(self._map) % LARGE_PAGE if laid else 0
        self._next_page, self._failures = 0, 0 if laid else MAX_FAILURES
        self.view = memoryview(self._map)[self._start : self._start + nbytes]

    def make_large_pages(self, first: int, end: int) -> None:
        """Make large pages of the bytes from ``first`` to ``end``, multiples of ``LARGE_PAGE``.

        Each of them has a small one already: they are not made of nothing.

        Raises:
            OSError: an older system, or there is no memory in one piece.
        """
        start = ctypes.c_void_p(_address(self._map) + self._start + first)
        if _libc.madvise(start, ctypes.c_size_t(end - first), MADV_COLLAPSE):  # others go on
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def collapse_next_page(self) -> float:
        """Make the next page large that is small still; return the seconds that it took.

        It is 0 when there is no more to do.  Where the system refuses one, it may grant the next.
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
    """Writes where a file in memory has no pages yet, from byte ``first`` to byte ``end``."""

    def __init__(self, fd: int, mapped: FileMap, first: int, end: int) -> None:
        """Write to ``fd``, of which ``mapped`` has as many bytes."""
        self._fd, self._map = fd, mapped
        self._next, self._last = _round_up(first), end // LARGE_PAGE * LARGE_PAGE
        self._time_budget = EXTRA_SECONDS  # of all threads, who may miss what another one has spent

    def write(self, at: int, data: memoryview) -> None:
        """Write ``data`` at byte ``at``, behind all that was written before."""
        end = at + data.nbytes
        cuts = [at, *range(_round_up(at + 1), end, CHUNK), end]
        pages = [(max(self._next, _round_up(low)), min(_round_up(high), self._last))
                 for low, high in itertools.pairwise(cuts)]  # fmt: skip
        self._next = max(self._next, _round_up(end))
        pieces = [data[low - at : high - at] for low, high in itertools.pairwise(cuts)]
        map_in_threads(self._write_piece, cuts[:-1], pieces, pages)

    def _write_piece(self, at: int, data: memoryview, pages: tuple[int, int]) -> None:
        """Write a piece, into which ``pages`` fall that can be large ones."""
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
    """Write ``data`` to a file at byte ``at``."""
    view = memoryview(data).cast("B")
    while view:  # Linux writes at most 2 GiB at a time
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done


def _round_up(at: int) -> int:
    return -(-at // LARGE_PAGE) * LARGE_PAGE


def _map_aligned(fd: int, nbytes: int, access: int) -> mmap.mmap | None:
    """Map a file where large pages can begin, over memory that is freed with it."""
    if sys.platform != "linux":
        return None
    kind = mmap.MAP_PRIVATE if access == PRIVATE else mmap.MAP_SHARED
    try:
        held = mmap.mmap(-1, nbytes + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # a limit counts it
        return None
    start = _address(held) + -_address(held) % LARGE_PAGE
    rights = mmap.PROT_READ | mmap.PROT_WRITE
    if _libc.mmap(start, nbytes, rights, kind | MAP_FIXED, fd, 0) == start:
        return held
    _failed.append(held)
    return None


_failed: list[mmap.mmap] = []
"""Kept: what a failed call has taken out of one may be another thread's, and not to be freed."""


def _address(held: mmap.mmap) -> int:
    return int(np.frombuffer(held, np.uint8).__array_interface__["data"][0])
