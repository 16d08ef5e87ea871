"""Ranks that wait for one another at different places, and would for ever.

A rank that waits for rank 0 at the beginning of a loop does not take part in a backward pass
until rank 0 has come there.  So if rank 0 has begun more of them than this one, it never will.
"""

from __future__ import annotations

import os
from pathlib import Path

from nbmgpu.errors import RankError, format_message
from nbmgpu.runs.events import Vitals, decode

END = 1 << 16
"""Bytes of another rank's events, the last ones, in which there is one of each second."""


def passes_begun(events: Path) -> int:
    """Return how many backward passes a rank had begun when it last told, by its events."""
    try:
        with events.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - END))
            lines = file.read().split(b"\n")[1:-1]
    except FileNotFoundError:  # somebody has removed the run's folder
        return 0
    for line in reversed(lines):
        if isinstance(event := decode(line.decode()), Vitals):
            return event.passes
    return 0


def apart(mine: int, of_rank_0: int) -> RankError:
    """Return what is wrong where this rank has done ``mine`` passes, and rank 0 begun more."""
    what = (
        f"Rank 0 waits for this rank in backward pass {of_rank_0:,}, and this one, after "
        f"{mine:,}, for what rank 0 tells it, as at the beginning of a loop: they did different "
        "numbers of passes"
    )
    likely = (
        "Most likely each sample, or each piece of a batch, has a backward() of its own, or the "
        "cell leaves steps out by what is in the batch (`if loss.item() > 1: continue`)"
    )
    way = (
        "one backward() for each batch (or, for pieces, a batch size that the number of ranks "
        "divides, with drop_last=True); multiply the loss by 0 instead of leaving a step out"
    )
    return RankError(format_message(what, likely, way))
