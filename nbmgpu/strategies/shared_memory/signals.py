"""How ranks that share memory wait for each other, and wake those that wait."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from nbmgpu.errors import RankError, format_message, step_mismatch_message
from nbmgpu.system.limits import usable_cores
from nbmgpu.system.shared_memory import CACHE_LINE, SharedMemory

SPIN = 50e-6
"""Seconds for which a rank polls before it blocks on its eventfd."""

MAX_SLEEP = 0.1
"""Seconds for which it blocks at most."""

HAS_LEFT, WAITS = 0, 1
"""Indices into a rank's line: whether it has left, and whether it blocks on its eventfd."""

NUMBERS = CACHE_LINE // 8
"""Numbers of a rank's line."""


class RankSignals:
    """The signals of one rank, and of those that share memory with it.

    Attributes:
        rank: this rank.
        others: the other ranks.
    """

    def __init__(self, shared_memory: SharedMemory, rank: int) -> None:
        """Initialize ``rank``, which was forked with ``shared_memory`` like all others."""
        self.rank = rank
        self.others = [r for r in range(shared_memory.world_size) if r != rank]
        self._lines = shared_memory.lines()
        self._eventfds = shared_memory.eventfds
        self._pid = os.getpid()
        self._lock = threading.Lock()
        free_core = usable_cores() >= shared_memory.world_size
        self._spin = SPIN if free_core else 0.0  # else it would occupy the core of another rank

    def check_process(self) -> None:
        """Raise if this is a child process, which must not write to the memory of its rank.

        Raises:
            RankError: it is.
        """
        if os.getpid() != self._pid:
            what = "The model is called or trained in a child process of a rank, such as a worker"
            allowed = "Ranks exchange parameters and gradients in their main process"
            raise RankError(format_message(what, allowed, "both in the loop, not in the Dataset"))

    def fence(self) -> None:
        """Let the other ranks see what this one has written, before it reads what they have.

        Python has no memory fence; the atomic operation of a lock is one.
        """
        with self._lock:
            pass

    def wake_others(self) -> None:
        """Wake the ranks that block, after something has been written that they wait for."""
        self.fence()
        for rank in self.others:
            if self._lines[rank * NUMBERS + WAITS]:
                os.eventfd_write(self._eventfds[rank], 1)

    def wait_for(self, rank: int, has_arrived: Callable[[], bool]) -> None:
        """Wait until ``has_arrived``, which becomes true by what ``rank`` writes.

        Raises:
            RankError: ``rank`` has finished the cell.
        """
        if has_arrived():
            return
        until = time.monotonic() + self._spin
        while not has_arrived():
            if self._lines[rank * NUMBERS + HAS_LEFT] and not has_arrived():
                raise RankError(step_mismatch_message(f"Rank {rank}", f"rank {self.rank}"))
            if time.monotonic() < until:
                os.sched_yield()
            else:
                self._block(has_arrived)

    def _block(self, has_arrived: Callable[[], bool]) -> None:
        eventfd = self._eventfds[self.rank]
        self._set(WAITS, 1)
        try:
            self.fence()
            if not has_arrived() and select.select([eventfd], [], [], MAX_SLEEP)[0]:
                os.eventfd_read(eventfd)
        finally:
            self._set(WAITS, 0)

    @property
    def has_left(self) -> bool:
        """Whether this rank takes part no longer."""
        return bool(self._lines[self.rank * NUMBERS + HAS_LEFT])

    def leave(self) -> None:
        """Stop taking part: ranks that wait for this one raise ``RankError``."""
        self._set(HAS_LEFT, 1)
        self.wake_others()

    def rejoin(self) -> None:
        """Take part again, once all ranks have left; a barrier must follow."""
        self._set(HAS_LEFT, 0)

    def _set(self, index: int, value: int) -> None:
        self._lines[self.rank * NUMBERS + index] = value
