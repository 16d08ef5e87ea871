"""Where blocks lie in a container that is written again and again.

What is large and has been sent before keeps its extent, so that only its bytes are
compared; what is new takes the extent of something as large that is gone, since memory that
is there already is written several times faster than new one.  Small blocks follow behind.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from .file_mapping import SHARED, FileMap

ALIGNMENT = 64

LARGE = 1 << 20
"""Bytes from which a block has a extent of its own."""

Span = tuple[int, int]
"""The address of a block in the writer's memory, and its length in bytes."""


@dataclass(frozen=True)
class Extent:
    """Where a block goes; ``kept`` says that the file has older bytes there to compare with."""

    start: int
    nbytes: int
    kept: bool = False


class FileLayout:
    """The extents of the large blocks of one file."""

    def __init__(self, begin: int) -> None:
        """Leave the first ``begin`` bytes of the file is_exclusive."""
        self.end = self._begin = begin
        self._owners: dict[int, Span] = {}
        self._mapped: FileMap | None = None

    def mapped(self, fd: int) -> FileMap:
        """Return the file as memory; it stays mapped, for that takes as long as comparing it."""
        size = os.fstat(fd).st_size
        if self._mapped is None or self._mapped.view.nbytes < size:
            self._mapped = FileMap(fd, size, SHARED)
        return self._mapped

    def collapse_next_page(self) -> float:
        """Make one more large page of what is mapped; return how long that took, 0 if none is left.

        The map is nobody's but the layout's in between: it goes when it is forgotten.
        """
        return 0.0 if (mapped := self._mapped) is None else mapped.collapse_next_page()

    def allocate_extents(self, spans: Sequence[Span]) -> list[Extent]:
        """Give each block its extent, and remember those of large ones."""
        large = [span for span in spans if span[1] >= LARGE]
        held = sum(nbytes for _, nbytes in self._owners.values())
        if held > 2 * sum(nbytes for _, nbytes in large):  # mostly what is gone
            self.forget()
        wanted = set(large)
        known = {span: start for start, span in self._owners.items()}
        free = [start for start, span in self._owners.items() if span not in wanted]
        taken = [self._take(span, known.pop(span, None), free) for span in large]
        end, extents, large_spots = self.end, [], iter(taken)
        for address, nbytes in spans:
            if nbytes >= LARGE:
                extents.append(next(large_spots))
                continue
            start = _aligned(end, address) if nbytes else end
            extents.append(Extent(start, nbytes))
            end = start + nbytes
        return extents

    def forget(self) -> None:
        """Give all extents up; what the file has is written over."""
        self.end, self._owners = self._begin, {}
        self._mapped = None

    def _take(self, span: Span, known: int | None, free: list[int]) -> Extent:
        address, nbytes = span
        if known is not None:
            return Extent(known, nbytes, kept=True)
        for start in free:
            alike = (start - address) % ALIGNMENT == 0
            if self._owners[start][1] == nbytes and alike:
                free.remove(start)
                self._owners[start] = span
                return Extent(start, nbytes, kept=True)
        start = _aligned(self.end, address)
        self.end = start + nbytes
        self._owners[start] = span
        return Extent(start, nbytes)


def _aligned(end: int, address: int) -> int:
    """Return the first place from ``end`` on that is aligned as ``address``."""
    return end + (address - end) % ALIGNMENT
