"""Broadcasts, barriers and sums of small values through the process group's store.

A collective right before DataLoader workers are forked can leave a lock held in
the child (measured: 1 in 310 with gloo, Python 3.11); the store has no threads.
"""

from __future__ import annotations

import math
import pickle
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from nbmgpu.errors import RankError, step_mismatch_message
from nbmgpu.strategies import collectives

from . import desync
from .default_store import default_store, use_prefix

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")

POLL_INTERVAL = timedelta(seconds=3)
"""Time between checks whether the value that a rank waits for can still arrive."""

NO_ENDING = "-"
AGREE_INTERVAL = 0.002
"""Seconds between two looks whether the other ranks have said something."""

FINISHED = b"finished"
"""The value that a rank sends when it is at the end of the cell; no pickle equals it."""

RANK_0_FINISHED = "nbmgpu/finished"
"""The key that exists when rank 0 is at the end of the cell."""

_broadcasts = 0
_barriers = 0
_sums = 0
_calls: dict[str, int] = {}
KEPT_KEYS = 1024
"""Keys kept behind the newest, for ranks that read late: loader workers draw far ahead."""


def broadcast_from_rank_0(value: T) -> T:
    """Return rank 0's ``value`` on every rank; all ranks make these calls in the same order."""
    global _broadcasts
    store: Any = default_store()
    key = f"nbmgpu/{_broadcasts}"
    _broadcasts += 1
    if dist.get_rank() == 0:
        store.set(key, pickle.dumps(value))
        if _broadcasts > KEPT_KEYS:
            store.set(f"nbmgpu/{_broadcasts - 1 - KEPT_KEYS}", b"")
        return value
    if not rank_0_sets(key):
        raise RankError(step_mismatch_message())
    received: T = pickle.loads(_check_finished(store.get(key)))
    return received


def broadcast_keyed(name: str, value: T) -> T:
    """Return the ``value`` of rank 0's call for ``name`` with the same number as this call.

    Rank 0 does not wait, so it may call this when other ranks do not.
    """
    _calls[name] = number = _calls.get(name, 0) + 1
    store: Any = default_store()
    key = f"nbmgpu/keyed/{name}/{number}"
    if dist.get_rank() == 0:
        store.set(key, pickle.dumps(value))
        return value
    if not rank_0_sets(key):
        raise RankError(step_mismatch_message("Rank 0"))
    received: T = pickle.loads(_check_finished(store.get(key)))
    return received


def rank_0_sets(key: str) -> bool:
    """Wait until rank 0 sets ``key``.

    Returns:
        Whether it does; False if it finishes its cell without.

    Raises:
        RankError: rank 0 waits for this rank.
    """
    store: Any = default_store()
    while not _wait(store, key):
        if store.check([RANK_0_FINISHED]) and not store.check([key]):  # in this order: no race
            return False
        detector = desync.detector
        if detector is None:
            continue
        begun = detector.begun_by_rank_0()
        if begun > detector.begun() and not store.check([key]):  # no race either
            raise desync.desync_error(detector.begun(), begun)
    return True


def _wait(store: Any, key: str) -> bool:
    """Wait for ``key`` for ``POLL_INTERVAL``; return whether it exists."""
    try:
        store.wait([key], POLL_INTERVAL)
    except dist.DistStoreError:
        return False
    return True


def barrier() -> None:
    """Wait until every rank has called this."""
    global _barriers
    store: Any = default_store()
    key = f"nbmgpu/barrier/{_barriers}"
    _barriers += 1
    if store.add(key, 1) == dist.get_world_size():
        store.set(f"{key}/all", b"")
    _check_finished(store.get(f"{key}/all"))


def wait_for_rank_0(name: str) -> None:
    """Wait until rank 0 has made as many calls for ``name`` as this rank.

    Rank 0 does not wait, so it may call this when other ranks do not.
    """
    _calls[name] = number = _calls.get(name, 0) + 1
    store: Any = default_store()
    if dist.get_rank() == 0:
        store.set(f"nbmgpu/after/{name}/{number}", b"")
    else:
        key = f"nbmgpu/after/{name}/{number}"
        if not rank_0_sets(key):
            raise RankError(step_mismatch_message("Rank 0"))


def mark_finished() -> None:
    """Mark this rank as finished; ranks that wait for it from now on raise an error.

    Ranks take different numbers of steps if these depend on the time or on values of their shards.

    Raises:
        RankError: another rank is in a step that this one has not done.
    """
    try:
        if collectives.shared is not None:
            collectives.shared.leave()
    finally:
        _tell_waiting_ranks()


def _tell_waiting_ranks() -> None:
    if not dist.is_initialized():  # the cell has destroyed the group
        return
    store: Any = default_store()
    if dist.get_rank() == 0:
        store.set(f"nbmgpu/{_broadcasts}", FINISHED)
        store.set(RANK_0_FINISHED, FINISHED)
    store.set(f"nbmgpu/barrier/{_barriers}/all", FINISHED)
    store.set(f"nbmgpu/sum/{_sums}/{dist.get_rank()}", FINISHED)


def agree(ending: str, patience: float = math.inf) -> bool:
    """Return whether the cell has ended in the same way on all ranks; called once, at its end.

    A rank that is killed says nothing: its launcher then ends those that wait here.

    Args:
        ending: a description; empty for one that is not that of other ranks.
        patience: seconds to wait for other ranks, which may wait for this one in a collective.
    """
    until = time.monotonic() + patience
    store, missing = default_store(), set(range(dist.get_world_size()))
    store.set(f"nbmgpu/ending/{dist.get_rank()}", ending or NO_ENDING)
    while missing and ending:
        if time.monotonic() > until:
            return False
        for rank in list(missing):
            if store.check([f"nbmgpu/ending/{rank}"]):
                if store.get(f"nbmgpu/ending/{rank}") != ending.encode():
                    return False
                missing.remove(rank)
        time.sleep(AGREE_INTERVAL if missing else 0.0)
    return bool(ending)


def begin_run(run_id: str) -> None:
    """Begin the run ``run_id`` in ranks that have finished another one; collective."""
    global _broadcasts, _barriers, _sums
    use_prefix(run_id)
    _broadcasts = _barriers = _sums = 0
    _calls.clear()
    if collectives.shared is not None:
        collectives.shared.rejoin()
    barrier()


def _check_finished(sent: bytes) -> bytes:
    if sent == FINISHED:
        raise RankError(step_mismatch_message())
    return sent


def sum_over_ranks(values: list[float], group: ProcessGroup | None = None) -> list[float]:
    """Return the elementwise sums of the ranks' ``values``, which have the same length.

    Sums over the ranks of ``group``, None for all; all ranks of the run call this.
    """
    global _sums
    store: Any = default_store()
    rank, ranks = dist.get_rank(), dist.get_process_group_ranks(group or dist.group.WORLD)
    key = f"nbmgpu/sum/{_sums}"
    store.set(f"{key}/{rank}", pickle.dumps(values))
    rows = [
        pickle.loads(_check_finished(row)) for row in store.multi_get([f"{key}/{r}" for r in ranks])
    ]
    if _sums:  # all ranks have read the previous sum, since they have sent values for this one
        store.delete_key(f"nbmgpu/sum/{_sums - 1}/{rank}")
    _sums += 1
    return [sum(column) for column in zip(*rows, strict=True)]
