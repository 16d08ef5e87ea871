"""Ranges of bytes in a file: which parts of a log were written to stderr."""

from __future__ import annotations

import bisect
from collections.abc import Iterator


class ByteRanges:
    """Half-open ranges ``start`` to ``end``, in order and without overlap."""

    def __init__(self) -> None:
        """Start empty."""
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add a range; merge it with the last one if they touch."""
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = end
        else:
            self._starts.append(start)
            self._ends.append(end)

    def __contains__(self, position: int) -> bool:
        """Tell whether the byte at ``position`` is in a range."""
        after = bisect.bisect_right(self._starts, position)
        return after > 0 and position < self._ends[after - 1]

    def split(self, start: int, stop: int) -> Iterator[tuple[int, bool]]:
        """Split ``start`` to ``stop`` at the ends of ranges.

        Yields the end of each part, and whether the part is in a range.
        """
        while start < stop:
            after = bisect.bisect_right(self._starts, start)
            inside = start in self
            limits = [stop, self._ends[after - 1] if inside else stop]
            if not inside and after < len(self._starts):
                limits.append(self._starts[after])
            start = min(limits)
            yield start, inside
