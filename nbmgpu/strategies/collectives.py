"""Collectives: through shared memory for CPU tensors of all ranks, else by the process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist

from .shared_memory.collectives import SharedMemoryCollectives
from .shared_memory.number_stream import LARGEST

# Torch before 2.12 has them under other names.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


class Work(Protocol):
    """A running all-reduce."""

    def wait(self) -> object:
        """Wait until the tensor holds the sum."""


@dataclass(frozen=True)
class _DeferredWork:
    """An all-reduce that runs in ``wait``: before, every core may be busy with a rank."""

    memory: SharedMemoryCollectives
    tensor: Tensor

    def wait(self) -> None:
        self.memory.all_reduce(self.tensor)


shared: SharedMemoryCollectives | None = None
"""The collectives through shared memory; None if the ranks share none."""


def shared_memory() -> SharedMemoryCollectives | None:
    """Return what ranks communicate through, None without, or if this one has finished the cell."""
    return None if shared is None or shared.has_left else shared


def shared_memory_for(
    tensor: Tensor, group: ProcessGroup | None = None
) -> SharedMemoryCollectives | None:
    """Return what ranks exchange ``tensor`` through; None without, for some ranks, or on a GPU."""
    everyone = group is None or group is dist.group.WORLD
    return shared_memory() if everyone and tensor.device.type == "cpu" else None


def all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> Work:
    """Start to sum a contiguous ``tensor`` over ``group``, in place.

    Collective: all ranks of the group start and wait for the same sums in the same order.

    Args:
        tensor: what to sum.
        group: None for all ranks, which can use shared memory.
    """
    if (memory := shared_memory_for(tensor, group)) is not None:
        return _DeferredWork(memory, tensor)
    work: Work = dist.all_reduce(tensor, group=group, async_op=True)
    return work


def all_gather(output: Tensor, own: Tensor, group: ProcessGroup | None = None) -> None:
    """Write the ``own`` tensors of all ranks of ``group`` to ``output``, in order; collective.

    Args:
        output: world size * n elements, contiguous; ``own`` may be a part of it.
        own: n elements, contiguous, of the same dtype.
        group: None for all ranks, which can use shared memory.
    """
    if (memory := shared_memory_for(own, group)) is not None:
        memory.all_gather(output, own)
    else:
        _all_gather_single(output, own, group=group)


def reduce_scatter(output: Tensor, full: Tensor, group: ProcessGroup | None = None) -> None:
    """Write this rank's part of the sum of all ranks' ``full`` tensors to ``output``; collective.

    Args:
        output: n elements, contiguous.
        full: world size * n elements, contiguous, of the same dtype.
        group: None for all ranks, which can use shared memory.
    """
    if (memory := shared_memory_for(full, group)) is not None:
        memory.reduce_scatter(output, full)
    else:
        _reduce_scatter_single(output, full, group=group)


def all_reduce_flags(flags: Sequence[bool]) -> list[bool]:
    """Return for each flag whether a rank has set it; collective among all ranks.

    Usually all ranks have set the same ones, which a hash of them shows.
    """
    if (memory := shared_memory()) is not None:
        own = hash(tuple(flags)) & LARGEST
        memory.flags.publish(own)
        if all(number == own for number in memory.flags.gather(memory.flags.position)):
            return list(flags)
    counts = torch.tensor(flags, dtype=torch.int32)  # on the CPU: no rank waits for a GPU
    all_reduce(counts).wait()
    return (counts > 0).tolist()


def gather_numbers(number: int, group: ProcessGroup | None = None) -> list[int]:
    """Return the numbers of the ranks of ``group``, in order; collective.

    The host waits for the other ranks, and for no GPU.

    Args:
        number: of this rank.
        group: None for all ranks, which can use shared memory.

    Raises:
        RankError: another rank has finished the cell; among all ranks.
    """
    numbers = torch.zeros(dist.get_world_size(group), dtype=torch.int64)
    numbers[dist.get_rank(group)] = number  # a sum to which each other rank adds zero
    all_reduce(numbers, group).wait()
    found: list[int] = numbers.tolist()
    return found
