"""Which pages of its own memory has this process written to?  The system knows exactly.

Linux 6.7 and later can protect the pages of a process so that the first write to one,
by whatever code, takes the protection off and goes on (``userfaultfd`` in its mode
WP_ASYNC); one call then tells which pages have lost theirs and renews it (``PAGEMAP_SCAN``).
That takes a sixth of the time of comparing bytes.  Where any of it is missing or forbidden, nothing
is known, and bytes are compared.
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
"""Bytes from which memory is watched: each span may cut two of the process's mappings."""

MAX_SPANS = 4096
"""Spans that are watched at most; a process may have 65,530 mappings."""

MERGE_GAP = 1 << 20
"""Unwritten bytes between two written named_parts from which they are told apart."""

PAGE = mmap.PAGESIZE

USERFAULTFD = {"x86_64": 323, "aarch64": 282}.get(platform.machine())
"""The number of the system call, which has no name in the C library."""

USER_MODE_ONLY, WP_UNPOPULATED, WP_ASYNC, MODE_WP = 1, 1 << 13, 1 << 15, 1 << 1
API, REGISTER, UNREGISTER, WRITE_PROTECT = 0xC018AA3F, 0xC020AA00, 0x8010AA01, 0xC018AA06
UFFD_VERSION = 0xAA
"""Of ``linux/userfaultfd.h``."""

SCAN, PROTECT_MATCHING, CHECK_ASYNC = 0xC0606610, 1, 2
WRITTEN, OF_FILE, PRESENT = 1 << 1, 1 << 2, 1 << 3
SCAN_ARGUMENT = struct.Struct("12Q")
"""Of ``linux/fs.h``."""

REGIONS = 4096
"""Written regions that one call tells of."""

HARMLESS_DEVICES = r"null|zero|full|u?random|console|ptmx|tty\w*|(?:pts|shm|mqueue)/.*"
DEVICE = re.compile(rf"/dev/(?<!\S/dev/)(?!(?:{HARMLESS_DEVICES})(?: \(deleted\))?$)", re.MULTILINE)
RINGS = re.compile(r"anon_inode:\[io_uring\]|/\[aio\]")
"""What, in a list of open or mapped files, may write to memory that has been pinned for it."""


class WriteTracker:
    """Watches spans of this process's memory, for one who asks again and again.

    The system lets a span have one watch.  A second one is told nothing of it.
    """

    def __init__(self) -> None:
        """WriteTracker nothing yet."""
        self._fd: int | None = None
        self._spans: set[Span] = set()

    def written(self, spans: Sequence[Span]) -> dict[Span, list[Span]]:
        """Return what may have been written to since the last call, and watch from now on.

        Args:
            spans: memory of this process; what is not among them is watched no more.

        Returns:
            The written named_parts of those spans that were watched since the last call: all, where
            there is other memory now.  Of others nothing is known.
        """
        large = [span for span in spans if span[1] >= MIN_TRACKED_BYTES][:MAX_SPANS]
        if large and self._open():
            with contextlib.suppress(OSError):  # no /proc to ask
                table = maps()
                if not _has_untracked_writers(table):
                    return self._reprotect(large, _PrivateMemory(table))
        self.close()
        return {}

    def untrack(self, span: Span) -> None:
        """WriteTracker ``span`` no more: the first write to each page of it takes longer while watched."""
        if span in self._spans and self._fd is not None:
            self._spans.remove(span)
            with contextlib.suppress(OSError):  # of memory that has been freed meanwhile
                fcntl.ioctl(self._fd, UNREGISTER, struct.pack("2Q", *_whole_pages(span)))

    def close(self) -> None:
        """WriteTracker nothing any more."""
        self._spans = set()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _reprotect(self, spans: Sequence[Span], private: _PrivateMemory) -> dict[Span, list[Span]]:
        """WriteTracker ``spans`` as far as possible; return what was written to of those known before."""
        assert self._fd is not None
        told = {}
        for span in self._spans - {*spans}:  # first: it may reach into one that stays
            self.untrack(span)
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for span in spans:
                inner = _whole_pages(span)
                if not private.holds(inner):
                    self.untrack(span)
                    continue
                known = span in self._spans
                self._spans.discard(span)
                with contextlib.suppress(OSError):  # another's, or it cannot be watched
                    # Also what is known, for it may be other memory now: then all of it counts as
                    # written, and if another one watches that, the system says so here is_exclusive.
                    fcntl.ioctl(self._fd, REGISTER, struct.pack("4Q", *inner, MODE_WP, 0))
                    if not known:
                        # Before Linux 6.13, memory that was moved while it was watched (realloc)
                        # keeps marks of that, and what is written to it later would not be told.
                        fcntl.ioctl(self._fd, WRITE_PROTECT, struct.pack("3Q", *inner, 0))
                    self._spans.add(span)
                    written = [*_edges(span, inner), *_scan(pages.fileno(), inner)]
                    if known:
                        told[span] = written
        return told

    def _open(self) -> bool:
        if self._fd is None:
            self._fd = _open_userfaultfd()
        return self._fd is not None


def _open_userfaultfd() -> int | None:
    if USERFAULTFD is None or sys.platform != "linux":
        return None
    flags = os.O_CLOEXEC | os.O_NONBLOCK | USER_MODE_ONLY  # which needs no privilege
    fd: int = ctypes.CDLL(None).syscall(USERFAULTFD, flags)
    if fd < 0:
        return None
    try:
        fcntl.ioctl(fd, API, struct.pack("3Q", UFFD_VERSION, WP_UNPOPULATED | WP_ASYNC, 0))
    except OSError:  # an older system
        os.close(fd)
        return None
    return fd


def _has_untracked_writers(table: str) -> bool:
    """Tell whether a device may write to this process's memory past its page table.

    To pin memory for a device counts as a write.  So only what is pinned now may have been
    written to unseen, and the device's driver is open then, or mapped.
    """
    files = "\n".join(open_files())
    return any(kind.search(text) for kind in (DEVICE, RINGS) for text in (files, table))


def _whole_pages(span: Span) -> Span:
    """Return the pages that lie wholly in ``span``: others may be in two spans."""
    low, high = -(-span[0] // PAGE) * PAGE, sum(span) // PAGE * PAGE
    return low, high - low


def _edges(span: Span, inner: Span) -> Iterator[Span]:
    """Yield the bytes before and behind the whole pages."""
    for start, end in (span[0], inner[0]), (sum(inner), sum(span)):
        if start < end:
            yield start, end - start


def _scan(pagemap: int, span: Span) -> Iterator[Span]:
    """Yield what has been written to in ``span``, or may have been, and protect it again."""
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
    """Yield ``regions``, starts and ends in ascending order, without small gaps between them."""
    if not len(regions):
        return
    cuts = np.flatnonzero(regions[1:, 0] - regions[:-1, 1] > MERGE_GAP) + 1
    for group in np.split(regions, cuts):
        low, high = int(group[0, 0]), int(group[-1, 1])
        yield low, high - low


class _PrivateMemory:
    """The anonymous private mappings of this process, touching ones taken together."""

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
        """Tell whether all of ``span`` is this process's own; others write to what is shared."""
        at = bisect.bisect_right(self._starts, span[0]) - 1
        return at >= 0 and sum(span) <= self._ends[at]
