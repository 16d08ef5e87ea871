"""Threads that the cell has begun and not waited for: a checkpoint that is being written, mostly.

In the notebook they live on; a rank ends with its cell, and waits for them first.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import process, thread
from typing import Any

PATIENCE = 60.0
"""Seconds for which a rank waits."""


class Began:
    """The threads that were there when the cell began."""

    def __init__(self) -> None:
        """Note them."""
        self._before = set(threading.enumerate())

    def wait_for_others(self, patience: float = PATIENCE) -> bool:
        """Wait until all others are done but daemons, which end with a process; return whether."""
        deadline = time.monotonic() + patience
        pools: Any = thread._threads_queues
        managers: Any = process._threads_wakeups  # of pools of processes: these never end
        left = [t for t in set(threading.enumerate()) - self._before if not t.daemon]
        working = [t for t in left if t not in managers]
        queues = {id(pools[t]): pools[t] for t in working if t in pools}
        for key, queue in queues.items():  # its threads wait for work for ever
            of_pool = sum(id(pools.get(t)) == key for t in working)
            last = _Last(of_pool, deadline)
            for _ in range(of_pool):
                queue.put(last)
            if not last.met.wait(max(0.0, deadline - time.monotonic())):
                return False
        for each in working:
            if each not in pools:
                each.join(max(0.0, deadline - time.monotonic()))
        return not any(each.is_alive() for each in working if each not in pools)


class _Last:
    """What each thread of a pool comes to behind all that it had to do."""

    def __init__(self, threads: int, deadline: float) -> None:
        self._barrier = threading.Barrier(threads, self._all_are_here)
        self._deadline = deadline
        self.met = threading.Event()

    def _all_are_here(self) -> None:
        self.met.set()

    def run(self, *context: Any) -> None:
        """Wait for the other threads, which may have more to do."""
        try:
            self._barrier.wait(max(0.0, self._deadline - time.monotonic()))
        except threading.BrokenBarrierError:
            return
