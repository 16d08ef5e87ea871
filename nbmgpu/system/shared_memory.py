"""Memory and eventfds that the ranks of a run share because they are forked with them.

Neither has a name, so both are freed with the last process that holds them.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

CACHE_LINE = 64
"""Bytes of a cache line: two ranks must not write to the same one."""

SLOT_BYTES = 1 << 20
"""Bytes of a slot.  Larger tensors are reduced in parts of this size, which stay in the caches."""

PHASES = 2
"""Sets of slots: while some ranks still read one set, others write to the other one."""


@dataclass(frozen=True)
class SharedMemory:
    """Shared memory for all-reduce among ``world_size`` forked ranks.

    Attributes:
        world_size: number of ranks.
        memory: a header of one cache line per rank, up to the next page; then, for each phase,
            one slot of ``SLOT_BYTES`` bytes per rank.
        eventfds: one per rank, on which that rank waits.
    """

    world_size: int
    memory: mmap.mmap
    eventfds: tuple[int, ...]

    @classmethod
    def create(cls, world_size: int) -> SharedMemory | None:
        """Return shared memory for ranks to be forked, or None where the system has none."""
        if not hasattr(os, "eventfd"):  # macOS
            return None
        eventfds: list[int] = []
        try:
            for _ in range(world_size):
                eventfds.append(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            memory = mmap.mmap(-1, header_bytes(world_size) + PHASES * world_size * SLOT_BYTES)
        except OSError:  # forbidden in a sandbox, or too many open files: ranks use gloo instead
            for eventfd in eventfds:
                os.close(eventfd)
            return None
        return cls(world_size, memory, tuple(eventfds))


def header_bytes(world_size: int) -> int:
    """Return the size of the header in bytes: one cache line per rank, in whole pages."""
    return -(-world_size * CACHE_LINE // mmap.PAGESIZE) * mmap.PAGESIZE
