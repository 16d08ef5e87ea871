"""Finds out by store keys whether ranks reach the same operation, since a cell may branch by rank.

An operation's key is the same on all ranks: its name, the number of the step and its number within
the step.  The step is part of it so that ranks agree again from the next step on if one rank has
run an operation more often than others (``if rank == 0:``).  No rank waits forever.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from . import desync
from .broadcast import RANK_0_FINISHED
from .default_store import default_store

TIMEOUT = 10.0
"""Seconds for which a rank waits for another one to reach the same operation."""

MISMATCH_TIMEOUT = 0.3
"""The same if rank 0 has run as many operations, and may have run this one under another name."""

ALONE_TIMEOUT = 2.0
"""The same for rank 0 if other ranks have not joined the saves that the operation is about."""

POLL_INTERVAL = 0.5
"""Seconds between checks how many steps rank 0 has begun."""

MISMATCH = "mismatch"
"""Suffix of the key that a rank sets if its operation has another name than rank 0's."""


@dataclass(frozen=True)
class Save:
    """A file that a rank has saved.

    Attributes:
        path_key: the key of the save by path.
        number_key: its key by its number within the step, whatever the path.
    """

    path_key: str
    number_key: str


class Rendezvous:
    """The operations that one rank has reached."""

    def __init__(self, rank: int) -> None:
        """Create the rendezvous of ``rank``."""
        self.rank = rank
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._missed: list[str] = []

    def next_key(self, name: str) -> str:
        """Return the key of the next operation ``name`` of this rank in this step."""
        main = threading.current_thread() is threading.main_thread()
        begun = 0 if desync.detector is None else desync.detector.begun()
        step = f"{begun}" if main else "thread"
        with self._lock:
            self._counts[f"{name} {step}"] += 1
            return f"nbmgpu/{name}/{step}/{self._counts[f'{name} {step}']}"

    def rank_0_arrives(self, key: str, number_key: str = "", known_key: str = "") -> bool:
        """Wait for rank 0 to reach the same operation; return whether it does.

        Args:
            key: the key of the operation.
            number_key: a key that rank 0 sets at its operation with the same number in the step,
                whatever that is.
            known_key: a key that exists if rank 0 has run the same operation before; it is then
                expected to run it again.
        """
        store = default_store()
        store.set(f"{key}/{self.rank}", b"")
        start = polled = time.monotonic()
        deadline = start + TIMEOUT
        while not store.check([f"{key}/begun"]):
            now = time.monotonic()
            if (
                number_key
                and store.check([number_key])
                and not (known_key and store.check([known_key]))
            ):
                deadline, number_key = min(deadline, now + MISMATCH_TIMEOUT), ""
            if now - polled > POLL_INTERVAL:
                polled = now
                if is_rank_0_ahead():
                    deadline = now
            if now >= deadline or store.check([RANK_0_FINISHED]):
                return bool(store.check([f"{key}/begun"]))
            time.sleep(min(0.01, 0.001 + (now - start) / 10))
        return True

    def wait_until_done(self, key: str) -> None:
        """Wait until rank 0, which has reached the operation ``key``, has completed it.

        Raises:
            OSError: it failed on rank 0.
        """
        store = default_store()
        while not store.check([f"{key}/done"]):
            if store.check([RANK_0_FINISHED]):
                return
            time.sleep(0.002)
        if number := store.get(f"{key}/done").decode():
            raise OSError(int(number), os.strerror(int(number)))

    def run_on_rank_0(self, key: str, operation: Callable[[], Any]) -> Any:
        """Run on rank 0 the operation ``key`` that other ranks wait for."""
        store, error_number = default_store(), ""
        store.set(f"{key}/begun", b"")
        try:
            return operation()
        except OSError as error:
            error_number = str(error.errno or "")
            raise
        finally:  # even if it failed: the cell may go on
            store.set(f"{key}/done", error_number)

    def wait_for_others(self, key: str, before: Sequence[Save]) -> None:
        """Wait on rank 0 until all ranks reach ``key``: they may need the files of ``before``.

        If they have not joined those saves, rank 0 may be the only one that runs the operation.
        After a timeout, rank 0 waits for a shorter time until the others reach that operation.
        """
        store, others = default_store(), range(1, dist.get_world_size())
        if self._missed and store.check(self._missed):
            self._missed = []
        alone_timeout = ALONE_TIMEOUT if before and not self._missed else MISMATCH_TIMEOUT
        keys = [f"{key}/{rank}" for rank in others]
        joined = [f"{save.path_key}/{rank}" for save in before[:8] for rank in others]
        mismatches = [f"{save.number_key}/{MISMATCH}" for save in before[:8]]
        start = time.monotonic()
        while not store.check(keys):
            waited = time.monotonic() - start
            if any(store.check([mismatch]) for mismatch in mismatches):
                return
            if waited > TIMEOUT or (waited > alone_timeout and self._may_be_alone(joined)):
                self._missed = keys if before else self._missed
                return
            time.sleep(0.002)

    def _may_be_alone(self, joined: Sequence[str]) -> bool:
        return bool(self._missed) or not joined or not default_store().check(list(joined))


def is_rank_0_ahead() -> bool:
    """Return whether rank 0 has begun more steps than this rank: it has passed this operation."""
    return desync.detector is not None and desync.detector.is_rank_0_ahead()
