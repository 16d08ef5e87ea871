"""All-reduce over ranks: through shared memory for CPU tensors of all ranks, else by the group.

gloo sends the data of ranks on one machine through sockets, from threads of its own: on two cores
an all-reduce of a kilobyte takes 1 ms, and through shared memory 30 us.  Every rank writes its part
into its slot, signals the others, and adds up all parts when all have arrived, in the order of
ranks.  So the sum has the same bits on all ranks.
"""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.distributed as dist

from nbmgpu.errors import RankError, format_message, step_mismatch_message
from nbmgpu.system.limits import usable_cores
from nbmgpu.system.shared_memory import CACHE_LINE, PHASES, SLOT_BYTES, SharedMemory, header_bytes

from .communication import counter

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

SPIN = 50e-6
"""Seconds for which a rank polls before it blocks on its eventfd."""

MAX_SLEEP = 0.1
"""Seconds for which it blocks at most."""

SEQUENCE_NUMBER, HAS_LEFT, FIRST_SIZE = 0, 1, 2
"""Indices into a rank's header line: the number of its all-reduce, whether it has left, and the
bytes of its last two all-reduces."""


class Work(Protocol):
    """A running all-reduce."""

    def wait(self) -> object:
        """Wait until the tensor holds the sum."""


class SharedMemoryAllReduce:
    """All-reduce through shared memory; every rank reduces the same tensors, in the same order."""

    def __init__(self, shared_memory: SharedMemory, rank: int) -> None:
        """Initialize ``rank``, which was forked with ``shared_memory`` like all others."""
        self.rank = rank
        self._shared_memory = shared_memory
        self._pid = os.getpid()
        self._broken = False
        self._others = [r for r in range(shared_memory.world_size) if r != rank]
        numbers = shared_memory.world_size * CACHE_LINE // 8
        lines = np.frombuffer(shared_memory.memory, np.int64, numbers)
        self._lines = lines.reshape(shared_memory.world_size, -1)
        self._sequence_number = 0
        free_core = usable_cores() >= shared_memory.world_size
        self._spin = SPIN if free_core else 0.0  # else it would occupy the core of another rank

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace ``tensor``, contiguous, by the sum over all ranks.

        Raises:
            RankError: ranks reduce different tensors, one has left, or this is a child process.
        """
        if os.getpid() != self._pid:
            what = "A backward pass runs in a child process of a rank, such as a DataLoader worker"
            allowed = "Ranks average gradients in their main process"
            raise RankError(format_message(what, allowed, "the backward pass in the loop"))
        if self._broken:
            what = f"Rank {self.rank} was interrupted while it reduced gradients"
            raise RankError(format_message(what, "Its state is unknown", "the cell again"))
        self._broken = True
        counter.count(tensor.nbytes)
        size = SLOT_BYTES // tensor.element_size()
        with torch.no_grad():
            for part in tensor.view(-1).split(size):
                self._reduce(part)
        self._broken = False

    def _reduce(self, part: Tensor) -> None:
        self._sequence_number += 1
        slots = self._slots(part)
        slots[self.rank].copy_(part)
        self._signal_arrival(part.nbytes)
        self._wait_for_others(part.nbytes)
        torch.sum(slots, 0, out=part)

    def _slots(self, part: Tensor) -> Tensor:
        """Return the ranks' slots of this all-reduce, shape (world size, elements of ``part``)."""
        ranks = self._shared_memory.world_size
        slots = torch.frombuffer(
            self._shared_memory.memory,
            dtype=part.dtype,
            count=ranks * SLOT_BYTES // part.element_size(),
            offset=header_bytes(ranks) + self._sequence_number % PHASES * ranks * SLOT_BYTES,
        )
        return slots.view(ranks, -1)[:, : part.numel()]

    def _signal_arrival(self, size: int) -> None:
        line = self._lines[self.rank]
        line[FIRST_SIZE + self._sequence_number % PHASES] = size
        line[SEQUENCE_NUMBER] = self._sequence_number  # last: then readers use the rest
        self._wake_others()

    def _wake_others(self) -> None:
        for rank in self._others:
            os.eventfd_write(self._shared_memory.eventfds[rank], 1)

    def _wait_for_others(self, size: int) -> None:
        until = time.monotonic() + self._spin
        for rank in self._others:
            line = self._lines[rank]
            while line[SEQUENCE_NUMBER] < self._sequence_number:
                if line[HAS_LEFT] and line[SEQUENCE_NUMBER] < self._sequence_number:
                    raise RankError(step_mismatch_message(f"Rank {rank}", f"rank {self.rank}"))
                if time.monotonic() < until:
                    os.sched_yield()
                else:
                    self._block()
            if line[FIRST_SIZE + self._sequence_number % PHASES] != size:
                what = f"Ranks {rank} and {self.rank} reduce tensors of different sizes here"
                raise RankError(format_message(what, instead="the same steps on all ranks"))

    def pending(self) -> tuple[int, int] | None:
        """Return number and bytes of the all-reduce that this rank waits in, None if it does not.

        For another thread, which reports a hang.
        """
        number, line = self._sequence_number, self._lines[self.rank]
        return (number, int(line[FIRST_SIZE + number % PHASES])) if self._broken else None

    def _block(self) -> None:
        eventfd = self._shared_memory.eventfds[self.rank]
        if select.select([eventfd], [], [], MAX_SLEEP)[0]:
            os.eventfd_read(eventfd)

    @property
    def has_left(self) -> bool:
        """Whether this rank takes part no longer."""
        return bool(self._lines[self.rank][HAS_LEFT])

    def leave(self) -> None:
        """Stop taking part: ranks that wait for this one raise ``RankError``."""
        self._lines[self.rank][HAS_LEFT] = 1
        self._wake_others()

    def rejoin(self) -> None:
        """Take part again, once all ranks have left; a barrier must follow."""
        self._lines[self.rank][HAS_LEFT] = 0


@dataclass(frozen=True)
class _DeferredWork:
    """An all-reduce that runs in ``wait``: before, every core may be busy with a rank."""

    reducer: SharedMemoryAllReduce
    tensor: Tensor

    def wait(self) -> None:
        self.reducer.all_reduce(self.tensor)


shared: SharedMemoryAllReduce | None = None
"""The all-reduce through shared memory; None if the ranks share none."""


def can_share_memory() -> bool:
    """Return whether ranks have shared memory, and this one has not finished the cell."""
    return shared is not None and not shared.has_left


def all_reduce(tensor: Tensor, group: ProcessGroup | None = None) -> Work:
    """Start to sum a contiguous ``tensor`` over ``group``, in place.

    Collective: all ranks of the group start and wait for the same sums in the same order.

    Args:
        tensor: what to sum.
        group: None for all ranks, which can use shared memory.
    """
    everyone = group is None or group is dist.group.WORLD
    if shared is not None and can_share_memory() and everyone and tensor.device.type == "cpu":
        return _DeferredWork(shared, tensor)
    work: Work = dist.all_reduce(tensor, group=group, async_op=True)
    return work


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
