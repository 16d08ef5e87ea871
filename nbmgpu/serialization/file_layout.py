"""Offsets of blocks in a container that is written repeatedly.

A large block that was written before keeps its offset, so that its bytes are only compared.  A new
block reuses the extent of a block of the same size that is gone, because existing memory is written
several times faster than new memory.  Small blocks follow behind the large ones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from .file_mapping import SHARED, FileMap

ALIGNMENT = 64

LARGE = 1 << 20
"""Blocks of at least this many bytes have an extent of their own."""

Span = tuple[int, int]
"""Address of a block in the writer's memory, and its length in bytes."""


@dataclass(frozen=True)
class Extent:
    """Offset and size of a block; with ``is_reused``, the file has older bytes there to compare."""

    start: int
    nbytes: int
    is_reused: bool = False


class FileLayout:
    """The extents of the large blocks of one file."""

    def __init__(self, begin: int) -> None:
        """Leave the first ``begin`` bytes of the file to the header."""
        self.end = self._begin = begin
        self._owners: dict[int, Span] = {}
        self._mapped: FileMap | None = None

    def mapped(self, fd: int) -> FileMap:
        """Return the mapped file; the mapping is kept, as mapping takes as long as comparing."""
        size = os.fstat(fd).st_size
        if self._mapped is None or self._mapped.view.nbytes < size:
            self._mapped = FileMap(fd, size, SHARED)
        return self._mapped

    def collapse_next_page(self) -> float:
        """Collapse the next pages of the mapped file into a huge page.

        The mapping must not be used by others meanwhile.

        Returns:
            The seconds that this took, 0 if nothing is left to do.
        """
        return 0.0 if (mapped := self._mapped) is None else mapped.collapse_next_page()

    def allocate_extents(self, spans: Sequence[Span]) -> list[Extent]:
        """Return an extent for each block, and remember those of large ones."""
        large = [span for span in spans if span[1] >= LARGE]
        held = sum(nbytes for _, nbytes in self._owners.values())
        if held > 2 * sum(nbytes for _, nbytes in large):  # most of it is unused
            self.forget()
        wanted = set(large)
        known = {span: start for start, span in self._owners.items()}
        free = [start for start, span in self._owners.items() if span not in wanted]
        allocated = [self._allocate(span, known.pop(span, None), free) for span in large]
        end, extents, large_extents = self.end, [], iter(allocated)
        for address, nbytes in spans:
            if nbytes >= LARGE:
                extents.append(next(large_extents))
                continue
            start = _aligned(end, address) if nbytes else end
            extents.append(Extent(start, nbytes))
            end = start + nbytes
        return extents

    def forget(self) -> None:
        """Drop all extents; the content of the file will be overwritten."""
        self.end, self._owners = self._begin, {}
        self._mapped = None

    def _allocate(self, span: Span, known: int | None, free: list[int]) -> Extent:
        address, nbytes = span
        if known is not None:
            return Extent(known, nbytes, is_reused=True)
        for start in free:
            alike = (start - address) % ALIGNMENT == 0
            if self._owners[start][1] == nbytes and alike:
                free.remove(start)
                self._owners[start] = span
                return Extent(start, nbytes, is_reused=True)
        start = _aligned(self.end, address)
        self.end = start + nbytes
        self._owners[start] = span
        return Extent(start, nbytes)


def _aligned(end: int, address: int) -> int:
    """Return the first offset from ``end`` on that has the alignment of ``address``."""
    return end + (address - end) % ALIGNMENT
