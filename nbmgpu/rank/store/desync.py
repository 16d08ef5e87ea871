"""Detects ranks that wait for each other at different points of the cell, forever.

A rank that waits for rank 0 at the beginning of a loop joins no backward pass until rank 0 gets
there.  If rank 0 has begun more backward passes than this rank, it waits in one for this rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from nbmgpu.errors import RankError, format_message
from nbmgpu.runs.event_lines import decode
from nbmgpu.runs.events import Heartbeat

TAIL_BYTES = 1 << 16
"""Size of the part at the end of an events file to read: it contains heartbeats, one a second."""


class DesyncDetector:
    """Compares how many backward passes this rank and rank 0 have begun."""

    def __init__(self, rank_0_events: Path, begun: Callable[[], int]) -> None:
        """Read rank 0's number from ``rank_0_events``; ``begun`` returns this rank's."""
        self._rank_0_events = rank_0_events
        self.begun = begun

    def begun_by_rank_0(self) -> int:
        """Return how many backward passes rank 0 had begun at its last heartbeat."""
        return backward_passes_begun(self._rank_0_events)

    def is_rank_0_ahead(self) -> bool:
        """Return whether rank 0 has begun more passes, and so does not get to this point again."""
        return self.begun_by_rank_0() > self.begun()


detector: DesyncDetector | None = None
"""Set by ``main`` before the cell runs."""


def backward_passes_begun(events: Path) -> int:
    """Return how many backward passes a rank had begun at its last heartbeat.

    Args:
        events: the rank's events file.
    """
    try:
        with events.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            lines = file.read().split(b"\n")[1:-1]
    except FileNotFoundError:  # the run folder was removed
        return 0
    for line in reversed(lines):
        if isinstance(event := decode(line), Heartbeat):
            return event.passes
    return 0


def desync_error(own: int, of_rank_0: int) -> RankError:
    """Return the error for ranks that wait for each other.

    Args:
        own: backward passes that this rank has begun.
        of_rank_0: backward passes that rank 0 has begun, which are more.
    """
    what = (
        f"Rank 0 waits for this rank in backward pass {of_rank_0:,}, while this rank, after "
        f"{own:,}, waits for a value from rank 0, as at the beginning of a loop: they ran "
        "different numbers of passes"
    )
    likely = (
        "Most likely each sample, or each piece of a batch, has a backward() of its own, or the "
        "cell skips steps depending on values of the batch (`if loss.item() > 1: continue`)"
    )
    way = (
        "one backward() per batch (or, for pieces, a batch size that the number of ranks "
        "divides, with drop_last=True); multiply the loss by 0 instead of skipping a step"
    )
    return RankError(format_message(what, likely, way))
