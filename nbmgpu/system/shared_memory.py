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
"""Bytes of a slot.  Larger tensors are sent in parts of this size, which stay in the caches."""

PHASES = 2
"""Sets of slots: while some ranks still read one set, others write to the other one."""

STREAM_LENGTH = 63
"""Numbers of a rank that a stream keeps."""

STREAM_BYTES = 8 * (1 + STREAM_LENGTH)
"""Bytes of a rank in a stream: up to where it has read the others, then its own numbers."""

STREAMS = CALL_ORDER, INTERRUPTS, FLAGS = range(3)
"""Streams of numbers, and what for."""


@dataclass(frozen=True)
class SharedMemory:
    """Shared memory for collectives of ``world_size`` forked ranks.

    Attributes:
        world_size: number of ranks.
        memory: a header, up to the next page; then, for each phase, one slot of ``SLOT_BYTES``
            bytes per rank.  The header has one cache line per rank, then, for each stream, one
            part of ``STREAM_BYTES`` bytes per rank.
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

    def lines(self) -> memoryview[int]:
        """Return the cache lines of all ranks, as int64, 8 per rank."""
        return self._numbers(0, self.world_size * CACHE_LINE)

    def stream(self, index: int, rank: int) -> memoryview[int]:
        """Return the part of ``rank`` in a stream, int64."""
        start = self.world_size * CACHE_LINE + (index * self.world_size + rank) * STREAM_BYTES
        return self._numbers(start, STREAM_BYTES)

    def slots_at(self, phase: int) -> int:
        """Return where the slots of a phase begin, in bytes."""
        return header_bytes(self.world_size) + phase * self.world_size * SLOT_BYTES

    def _numbers(self, start: int, size: int) -> memoryview[int]:
        return memoryview(self.memory)[start : start + size].cast("q")


def header_bytes(world_size: int) -> int:
    """Return the size of the header in bytes, in whole pages."""
    used = world_size * (CACHE_LINE + len(STREAMS) * STREAM_BYTES)
    return -(-used // mmap.PAGESIZE) * mmap.PAGESIZE
