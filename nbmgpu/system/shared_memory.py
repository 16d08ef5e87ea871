"""Memory and bells that all ranks of a run have in common, because they are forked with them.

Nothing of it has a name: it ends with the last of its processes.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

LINE = 64
"""Bytes of a cache line: what two ranks write to must not share one."""

PIECE = 1 << 20
"""Bytes of each rank's room in a half: more than that goes in pieces, which stay in the caches."""

HALVES = 2
"""While some ranks still read one half, others write to the other one."""


@dataclass(frozen=True)
class Arena:
    """A line and a bell for each rank, and its rooms.

    ``memory`` has ``world_size`` lines of ``LINE`` bytes, up to the next page; then, for each
    half, as many rooms of ``PIECE`` bytes.  A bell is an ``eventfd``, which its rank waits for.
    """

    world_size: int
    memory: mmap.mmap
    bells: tuple[int, ...]

    @classmethod
    def make(cls, world_size: int) -> Arena | None:
        """Return an arena for ranks that are yet to be forked; None where none can be had."""
        if not hasattr(os, "eventfd"):  # macOS
            return None
        bells: list[int] = []
        try:
            for _ in range(world_size):
                bells.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            memory = mmap.mmap(-1, lines_size(world_size) + HALVES * world_size * PIECE)
        except OSError:  # forbidden in a sandbox, or too many files: ranks do without
            for bell in bells:
                os.close(bell)
            return None
        return cls(world_size, memory, tuple(bells))


def lines_size(world_size: int) -> int:
    """Return the bytes that ranks' lines take, in whole pages."""
    return -(-world_size * LINE // mmap.PAGESIZE) * mmap.PAGESIZE
