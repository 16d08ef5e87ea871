"""Small values from rank 0 to all ranks, through the process group's store.

A collective right before DataLoader workers are forked can leave a lock held in
the child (measured: 1 in 310 with gloo, Python 3.11); the store has no threads.
"""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from nbmgpu.errors import RankError, step_mismatch_message
from nbmgpu.rank import session
from nbmgpu.strategies import all_reduce

from .desync import apart, passes_begun

T = TypeVar("T")

PATIENCE = timedelta(seconds=3)
"""Between looks whether what a rank waits for can still come."""

LEFT = b"left"
"""What a rank sends that sends nothing any more; nothing pickled is like it."""

GONE = "nbmgpu/gone"
"""The key that is there when rank 0 is at the end of the cell."""

_count = 0
_meetings = 0
_sums = 0
_passed: dict[str, int] = {}
KEEP = 1024
"""Keys kept behind the newest one, for ranks that read late: a loader's workers draw far ahead."""


def broadcast_from_rank_0(value: T) -> T:
    """Return rank 0's ``value`` on every rank; called in the same order by all."""
    global _count
    store: Any = dist.distributed_c10d._get_default_store()
    key = f"nbmgpu/{_count}"
    _count += 1
    if dist.get_rank() == 0:
        store.set(key, pickle.dumps(value))
        if _count > KEEP:
            store.set(f"nbmgpu/{_count - 1 - KEEP}", b"")
        return value
    if not comes_from_rank_0(key):
        raise RankError(step_mismatch_message())
    received: T = pickle.loads(_there(store.get(key)))
    return received


def broadcast_keyed(what: str, value: T) -> T:
    """Return what rank 0 has given as ``value`` when it came by here as often as this rank has.

    Rank 0 itself does not wait, so it may come by alone.
    """
    _passed[what] = passed = _passed.get(what, 0) + 1
    store: Any = dist.distributed_c10d._get_default_store()
    key = f"nbmgpu/keyed/{what}/{passed}"
    if dist.get_rank() == 0:
        store.set(key, pickle.dumps(value))
        return value
    if not comes_from_rank_0(key):
        raise RankError(step_mismatch_message("Rank 0"))
    received: T = pickle.loads(_there(store.get(key)))
    return received


def comes_from_rank_0(key: str) -> bool:
    """Wait for what rank 0 sets; return whether it does, or is through its cell without.

    Raises:
        RankError: rank 0 waits for this rank.
    """
    store: Any = dist.distributed_c10d._get_default_store()
    while not _arrives(store, key):
        if store.check([GONE]) and not store.check([key]):  # looked for after: it is sure
            return False
        current = session.current
        if current is None:
            continue
        begun = passes_begun(current.recorder.events.path.with_name("rank-0.jsonl"))
        if begun > current.begun and not store.check([key]):  # likewise
            raise apart(current.begun, begun)
    return True


def _arrives(store: Any, key: str) -> bool:
    try:
        store.wait([key], PATIENCE)
    except dist.DistStoreError:
        return False
    return True


def barrier() -> None:
    """Wait until every rank is here."""
    global _meetings
    store: Any = dist.distributed_c10d._get_default_store()
    key = f"nbmgpu/met/{_meetings}"
    _meetings += 1
    if store.add(key, 1) == dist.get_world_size():
        store.set(f"{key}/all", b"")
    _there(store.get(f"{key}/all"))


def wait_for_rank_0(what: str) -> None:
    """Wait until rank 0 has come by here as often as this rank has.

    Rank 0 itself does not wait, so it may come by alone.
    """
    _passed[what] = passed = _passed.get(what, 0) + 1
    store: Any = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set(f"nbmgpu/after/{what}/{passed}", b"")
    else:
        key = f"nbmgpu/after/{what}/{passed}"
        if not comes_from_rank_0(key):
            raise RankError(step_mismatch_message("Rank 0"))


def mark_finished() -> None:
    """Be at the end of the cell: ranks that wait for this one from now on are told so.

    Ranks do different numbers of steps where a clock decides, or what is in their shares.
    """
    if all_reduce.shared is not None:
        all_reduce.shared.leave()
    if not dist.is_initialized():  # the cell has ended the group itself
        return
    store: Any = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 0:
        store.set(f"nbmgpu/{_count}", LEFT)
        store.set(GONE, LEFT)
    store.set(f"nbmgpu/met/{_meetings}/all", LEFT)
    store.set(f"nbmgpu/sum/{_sums}/{dist.get_rank()}", LEFT)


def _there(sent: bytes) -> bytes:
    if sent == LEFT:
        raise RankError(step_mismatch_message())
    return sent


def sum_over_ranks(values: list[float]) -> list[float]:
    """Return the sums of all ranks' ``values``, as many on each."""
    global _sums
    store: Any = dist.distributed_c10d._get_default_store()
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    key = f"nbmgpu/sum/{_sums}"
    store.set(f"{key}/{rank}", pickle.dumps(values))
    rows = [pickle.loads(_there(row)) for row in store.multi_get([f"{key}/{r}" for r in ranks])]
    if _sums:  # all have read the sum before: they have sent their parts of this one
        store.delete_key(f"nbmgpu/sum/{_sums - 1}/{rank}")
    _sums += 1
    return [sum(column) for column in zip(*rows, strict=True)]
