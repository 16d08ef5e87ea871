"""Stretches of a file, in order: which bytes of a log were written to stderr."""

from __future__ import annotations

import bisect
from collections.abc import Iterator


class Spans:
    """Stretches ``start`` to ``end`` that come in order and do not overlap."""

    def __init__(self) -> None:
        """Begin without any."""
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add a stretch; one that begins where the last ends makes that longer."""
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = end
        else:
            self._starts.append(start)
            self._ends.append(end)

    def __contains__(self, position: int) -> bool:
        """Tell whether the byte at ``position`` lies in a stretch."""
        after = bisect.bisect_right(self._starts, position)
        return after > 0 and position < self._ends[after - 1]

    def cut(self, start: int, stop: int) -> Iterator[tuple[int, bool]]:
        """Cut ``start`` to ``stop`` where stretches begin and end.

        Yields the end of each piece, and whether it lies in a stretch.
        """
        while start < stop:
            after = bisect.bisect_right(self._starts, start)
            inside = start in self
            limits = [stop, self._ends[after - 1] if inside else stop]
            if not inside and after < len(self._starts):
                limits.append(self._starts[after])
            start = min(limits)
            yield start, inside
