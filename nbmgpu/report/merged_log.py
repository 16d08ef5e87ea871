"""The lines of all ranks in one list, in the order in which they were written.

Logs have no timestamps, but each heartbeat of a rank and each write to stderr records the size of
its log. A line gets the time of the first record that includes it. Lines between two records are
ordered by rank. The order of a line is final once its record has arrived.
"""

from __future__ import annotations

import numpy as np

from nbmgpu.runs.rank_view import RankView
from nbmgpu.runs.view import RunView

PATIENCE = 5.0
"""Seconds for which a rank without heartbeats delays the lines of the others."""

Listing = tuple[np.ndarray, np.ndarray]
"""Ranks and line numbers, in order."""


class MergedLog:
    """Merges the lines of growing logs."""

    def __init__(self, view: RunView) -> None:
        """Order the lines of the ranks in ``view``."""
        self._view = view
        self._final: Listing = (np.empty(0, np.int64), np.empty(0, np.int64))
        self._taken = [0] * len(view.ranks)

    def update(self, ends: list[np.ndarray]) -> Listing:
        """Return all lines; ``ends`` has, for each rank, the offset of each line's end."""
        ranks, numbers, times = self._new(ends)
        order = np.lexsort((numbers, ranks, times))
        ranks, numbers, times = ranks[order], numbers[order], times[order]
        sure = times <= self._known_until()
        for rank, taken in enumerate(self._taken):
            self._taken[rank] = taken + int((ranks[sure] == rank).sum())
        self._final = (
            np.append(self._final[0], ranks[sure]), np.append(self._final[1], numbers[sure]),
        )  # fmt: skip
        rest = ~sure
        return (
            np.append(self._final[0], ranks[rest]), np.append(self._final[1], numbers[rest]),
        )  # fmt: skip

    def _new(self, ends: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ranks, numbers, times = [], [], []
        for rank, (all_ends, taken) in enumerate(zip(ends, self._taken, strict=True)):
            new = all_ends[taken:]
            ranks.append(np.full(len(new), rank))
            numbers.append(np.arange(taken, len(all_ends)))
            times.append(_times(self._view.ranks[rank], new))
        return np.concatenate(ranks), np.concatenate(numbers), np.concatenate(times)

    def _known_until(self) -> float:
        """Return the time up to which all lines are known."""
        if self._view.ended:
            return float("inf")
        last = [rank.log.times[-1] if rank.log.times else 0.0
                for rank in self._view.ranks if rank.exited is None]  # fmt: skip
        beats = [rank.heartbeat.time if rank.heartbeat else 0.0 for rank in self._view.ranks]
        known = [max(pair) for pair in zip(last, beats, strict=False)] or [0.0]
        return max(min(known), max(beats) - PATIENCE)


def _times(seen: RankView, ends: np.ndarray) -> np.ndarray:
    """Return when lines that end at ``ends`` were written, infinity for the newest."""
    offsets = np.array(seen.log.offsets, np.int64)
    unknown = seen.last_time if seen.exited else np.inf
    times = np.append(np.array(seen.log.times, np.float64), unknown)
    return np.maximum.accumulate(times)[np.searchsorted(offsets, ends)]
