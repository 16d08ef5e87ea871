"""Tracks which pages of this process's memory have been written to, with userfaultfd.

Linux 6.7 and later can write-protect pages so that the first write to a page, by any code, removes
the protection and continues (``userfaultfd`` in its mode WP_ASYNC).  One call then returns the
pages that have lost their protection and protects them again (``PAGEMAP_SCAN``).  That takes a
sixth of the time of comparing bytes.  Where any of this is missing or forbidden, no writes are
tracked and bytes are compared.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import re
import struct
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from nbmgpu.system.procfs import anonymous, maps, open_files

from .file_layout import Span

MIN_TRACKED_BYTES = 4 << 20
"""Smaller memory is not tracked, as each span may split two of the process's mappings."""

MAX_SPANS = 4096
"""Largest number of tracked spans; a process may have 65,530 mappings."""

MERGE_GAP = 1 << 20
"""Written parts are merged if fewer unwritten bytes are between them."""

PAGE = mmap.PAGESIZE

USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(platform.machine())
"""The number of the system call, for which the C library has no wrapper."""

USER_MODE_ONLY, WP_UNPOPULATED, WP_ASYNC, MODE_WP = 1, 1 << 13, 1 << 15, 1 << 1
API, REGISTER, UNREGISTER, WRITE_PROTECT = 0xC018AA3F, 0xC020AA00, 0x8010AA01, 0xC018AA06
UFFD_VERSION = 0xAA
"""Constants of ``linux/userfaultfd.h``."""

SCAN, PROTECT_MATCHING, CHECK_ASYNC = 0xC0606610, 1, 2
WRITTEN, OF_FILE, PRESENT = 1 << 1, 1 << 2, 1 << 3
SCAN_ARGUMENT = struct.Struct("12Q")
"""Constants of ``linux/fs.h``."""

REGIONS = 4096
"""Largest number of written regions that one call returns."""

HARMLESS_DEVICES = r"null|zero|full|u?random|console|ptmx|tty\w*|(?:pts|shm|mqueue)/.*"
DEVICE = re.compile(rf"/dev/(?<!\S/dev/)(?!(?:{HARMLESS_DEVICES})(?: \(deleted\))?$)", re.MULTILINE)
RINGS = re.compile(r"anon_inode:\[io_uring\]|/\[aio\]")
"""In a list of open or mapped files: devices and rings that may write to pinned memory."""


class WriteTracker:
    """Tracks writes to spans of this process's memory between calls.

    The system allows one tracker per span.  A second one gets no information about it.
    """

    def __init__(self) -> None:
        """Track nothing yet."""
        self._fd: int | None = None
        self._spans: set[Span] = set()

    def written(self, spans: Sequence[Span]) -> dict[Span, list[Span]]:
        """Return what may have been written since the last call, and track ``spans``.

        Args:
            spans: memory of this process; other memory is no longer tracked.

        Returns:
            The written parts of those spans that were tracked since the last call; all of a span if
            its memory has been replaced.  ByteRanges that were not tracked are missing.
        """
        large = [span for span in spans if span[1] >= MIN_TRACKED_BYTES][:MAX_SPANS]
        if large and self._open():
            with contextlib.suppress(OSError):  # no /proc
                table = maps()
                if not _has_untracked_writers(table):
                    return self._reprotect(large, _PrivateMemory(table))
        self.close()
        return {}

    def untrack(self, span: Span) -> None:
        """Stop tracking ``span``, as the first write to each tracked page is slower."""
        if span in self._spans and self._fd is not None:
            self._spans.remove(span)
            with contextlib.suppress(OSError):  # the memory has been freed
                fcntl.ioctl(self._fd, UNREGISTER, struct.pack("2Q", *_whole_pages(span)))

    def close(self) -> None:
        """Stop tracking."""
        self._spans = set()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _reprotect(self, spans: Sequence[Span], private: _PrivateMemory) -> dict[Span, list[Span]]:
        """Track ``spans`` where possible; return written parts of those tracked before."""
        assert self._fd is not None
        written_parts = {}
        for span in self._spans - {*spans}:  # first, because it may overlap a span that stays
            self.untrack(span)
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for span in spans:
                inner = _whole_pages(span)
                if not private.holds(inner):
                    self.untrack(span)
                    continue
                known = span in self._spans
                self._spans.discard(span)
                with contextlib.suppress(OSError):  # tracked by another one, or not trackable
                    # Also spans that are tracked: the memory may have been replaced, and then all
                    # of it counts as written.  Only this call fails if another tracker has it.
                    fcntl.ioctl(self._fd, REGISTER, struct.pack("4Q", *inner, MODE_WP, 0))
                    if not known:
                        # Before Linux 6.13, memory that was moved while it was tracked (realloc)
                        # keeps stale marks, and later writes to it would not be reported.
                        fcntl.ioctl(self._fd, WRITE_PROTECT, struct.pack("3Q", *inner, 0))
                    self._spans.add(span)
                    written = [*_edges(span, inner), *_scan(pages.fileno(), inner)]
                    if known:
                        written_parts[span] = written
        return written_parts

    def _open(self) -> bool:
        if self._fd is None:
            self._fd = _open_userfaultfd()
        return self._fd is not None


def _open_userfaultfd() -> int | None:
    if USERFAULTFD is None or sys.platform != "linux":
        return None
    flags = os.O_CLOEXEC | os.O_NONBLOCK | USER_MODE_ONLY  # needs no privilege
    fd: int = ctypes.CDLL(None).syscall(USERFAULTFD, flags)
    if fd < 0:
        return None
    try:
        fcntl.ioctl(fd, API, struct.pack("3Q", UFFD_VERSION, WP_UNPOPULATED | WP_ASYNC, 0))
    except OSError:  # an older kernel
        os.close(fd)
        return None
    return fd


def _has_untracked_writers(table: str) -> bool:
    """Return whether a device may write to this process's memory without using its page table.

    Pinning memory for a device counts as a write.  So only memory that is pinned now may have been
    written without notice, and then the device's driver is open or mapped.
    """
    files = "\n".join(open_files())
    return any(kind.search(text) for kind in (DEVICE, RINGS) for text in (files, table))


def _whole_pages(span: Span) -> Span:
    """Return the pages that are completely inside ``span``; others may be in two spans."""
    low, high = -(-span[0] // PAGE) * PAGE, sum(span) // PAGE * PAGE
    return low, high - low


def _edges(span: Span, inner: Span) -> Iterator[Span]:
    """Yield the bytes before and after the whole pages."""
    for start, end in (span[0], inner[0]), (sum(inner), sum(span)):
        if start < end:
            yield start, end - start


def _scan(pagemap: int, span: Span) -> Iterator[Span]:
    """Yield the parts of ``span`` that may have been written, and protect them again."""
    start, end = span[0], sum(span)
    regions = np.empty((REGIONS, 3), np.uint64)
    while start < end:
        asked = SCAN_ARGUMENT.pack(
            SCAN_ARGUMENT.size, PROTECT_MATCHING | CHECK_ASYNC, start, end, 0,
            regions.ctypes.data, REGIONS, 0,
            PRESENT, 0, WRITTEN | OF_FILE | PRESENT,  # any of: written, of a file, not present
            WRITTEN,
        )  # fmt: skip
        answer = bytearray(asked)
        found: int = fcntl.ioctl(pagemap, SCAN, answer)
        yield from _merged(regions[:found, :2].astype(np.int64))
        start = SCAN_ARGUMENT.unpack(answer)[4]


def _merged(regions: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Iterator[Span]:
    """Yield ``regions``, sorted starts and ends, merged across small gaps."""
    if not len(regions):
        return
    cuts = np.flatnonzero(regions[1:, 0] - regions[:-1, 1] > MERGE_GAP) + 1
    for group in np.split(regions, cuts):
        low, high = int(group[0, 0]), int(group[-1, 1])
        yield low, high - low


class _PrivateMemory:
    """The anonymous private mappings of this process; adjacent ones are merged."""

    def __init__(self, table: str) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for low, high, rights in anonymous(table):
            if rights[3] != "p":
                continue
            if self._ends and self._ends[-1] == low:
                self._ends[-1] = high
            else:
                self._starts.append(low)
                self._ends.append(high)

    def holds(self, span: Span) -> bool:
        """Return whether all of ``span`` is private; other processes may write to shared memory."""
        at = bisect.bisect_right(self._starts, span[0]) - 1
        return at >= 0 and sum(span) <= self._ends[at]
