"""The lines of all ranks in one list, in the order in which they were written.

A log carries no times.  But each beat of a rank says how long its log was then, and so does
each write to stderr: a line is as old as the first of these that has it.  Lines between two
beats stand by rank.  What is once in the list stays where it is, but for the newest lines,
whose beat is still to come.
"""

from __future__ import annotations

import numpy as np

from nbmgpu.runs.view import RankView, RunView

PATIENCE = 5.0
"""Seconds for which a rank that does not beat holds the others' lines back."""

Listing = tuple[np.ndarray, np.ndarray]
"""Ranks and line numbers, in order."""


class Merged:
    """Keeps the list while logs grow."""

    def __init__(self, view: RunView) -> None:
        """Order the lines of the ranks in ``view``."""
        self._view = view
        self._settled: Listing = (np.empty(0, np.int64), np.empty(0, np.int64))
        self._taken = [0] * len(view.ranks)

    def update(self, ends: list[np.ndarray]) -> Listing:
        """Return all lines; ``ends`` has, for each rank, the offset of each line's end."""
        ranks, numbers, times = self._new(ends)
        order = np.lexsort((numbers, ranks, times))
        ranks, numbers, times = ranks[order], numbers[order], times[order]
        sure = times <= self._horizon()
        for rank, taken in enumerate(self._taken):
            self._taken[rank] = taken + int((ranks[sure] == rank).sum())
        self._settled = (
            np.append(self._settled[0], ranks[sure]), np.append(self._settled[1], numbers[sure]),
        )  # fmt: skip
        rest = ~sure
        return (
            np.append(self._settled[0], ranks[rest]), np.append(self._settled[1], numbers[rest]),
        )  # fmt: skip

    def _new(self, ends: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ranks, numbers, times = [], [], []
        for rank, (all_ends, taken) in enumerate(zip(ends, self._taken, strict=True)):
            new = all_ends[taken:]
            ranks.append(np.full(len(new), rank))
            numbers.append(np.arange(taken, len(all_ends)))
            times.append(_times(self._view.ranks[rank], new))
        return np.concatenate(ranks), np.concatenate(numbers), np.concatenate(times)

    def _horizon(self) -> float:
        """Return the time up to which all that was written is known."""
        if self._view.ended:
            return float("inf")
        last = [rank.marks.times[-1] if rank.marks.times else 0.0
                for rank in self._view.ranks if rank.exited is None]  # fmt: skip
        beats = [rank.vitals.time if rank.vitals else 0.0 for rank in self._view.ranks]
        known = [max(pair) for pair in zip(last, beats, strict=False)] or [0.0]
        return max(min(known), max(beats) - PATIENCE)


def _times(seen: RankView, ends: np.ndarray) -> np.ndarray:
    """Return when lines that end at ``ends`` were written, infinity for the newest."""
    offsets = np.array(seen.marks.offsets, np.int64)
    unknown = seen.last_time if seen.exited else np.inf
    times = np.append(np.array(seen.marks.times, np.float64), unknown)
    return np.maximum.accumulate(times)[np.searchsorted(offsets, ends)]
