"""Detects ranks that wait for each other at different points of the cell, forever.

A rank that waits for rank 0 at the beginning of a loop joins no backward pass until rank 0 gets
there.  If rank 0 has begun more backward passes than this rank, it waits in one and never does.
"""

from __future__ import annotations

import os
from pathlib import Path

from nbmgpu.errors import RankError, format_message
from nbmgpu.runs.events import Vitals, decode

TAIL_BYTES = 1 << 16
"""Size of the end of an events file that surely contains a heartbeat, of which one is a second."""


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
        if isinstance(event := decode(line.decode()), Vitals):
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
