"""Sums over ranks: of CPU tensors through memory where ranks share some, else by the process group.

gloo sends what ranks of one machine have to tell through sockets, by threads of its own: on two
cores a kilobyte takes a millisecond, and through memory 30 microseconds.  Every rank writes its
part into a slot of its own, tells the others, and when all have, adds all parts up, in the order
of ranks: so the sum is the same on all of them, bit by bit.
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

from nbmgpu.errors import RankError, compose, out_of_step
from nbmgpu.system.limits import usable_cores
from nbmgpu.system.shared_memory import CACHE_LINE, PHASES, SLOT_BYTES, SharedMemory, header_bytes

if TYPE_CHECKING:
    from torch import Tensor

SPIN = 50e-6
"""Seconds for which a rank asks again and again, before it blocks on its eventfd."""

NAP = 0.1
"""Seconds that it sleeps at most."""

TURN, LEFT, FIRST_SIZE = 0, 1, 2
"""Numbers in a rank's line: its turn, whether it has left, and the bytes of its last two turns."""


class Work(Protocol):
    """A sum under way."""

    def wait(self) -> object:
        """End it: the tensor is the sum then."""


class SharedSums:
    """Sums through shared memory; every rank asks for the same ones, in the same order."""

    def __init__(self, shared_memory: SharedMemory, rank: int) -> None:
        """Be ``rank`` of those that have been forked with ``shared_memory``."""
        self.rank = rank
        self._shared_memory = shared_memory
        self._pid = os.getpid()
        self._broken = False
        self._others = [r for r in range(shared_memory.world_size) if r != rank]
        numbers = shared_memory.world_size * CACHE_LINE // 8
        lines = np.frombuffer(shared_memory.memory, np.int64, numbers)
        self._lines = lines.reshape(shared_memory.world_size, -1)
        self._turn = 0
        spare = usable_cores() >= shared_memory.world_size
        self._spin = SPIN if spare else 0.0  # who spins may have the core of the one awaited

    def add(self, tensor: Tensor) -> None:
        """Make ``tensor``, contiguous, the sum of all ranks' tensors.

        Raises:
            RankError: ranks do not add up the same things, one has left, or this is no rank.
        """
        if os.getpid() != self._pid:
            what = "A backward pass runs in a child of a rank, such as a loader's worker"
            raise RankError(compose(what, "Ranks add its gradients up", "the pass in the loop"))
        if self._broken:
            what = f"Rank {self.rank} was interrupted while it added up gradients with the others"
            raise RankError(compose(what, "It does not know what they have", "the cell again"))
        self._broken = True
        size = SLOT_BYTES // tensor.element_size()
        with torch.no_grad():
            for part in tensor.view(-1).split(size):
                self._add(part)
        self._broken = False

    def _add(self, part: Tensor) -> None:
        self._turn += 1
        slots = self._slots(part)
        slots[self.rank].copy_(part)
        self._arrive(part.nbytes)
        self._meet(part.nbytes)
        torch.sum(slots, 0, out=part)

    def _slots(self, part: Tensor) -> Tensor:
        """Return the ranks' slots of this turn, shape (world size, elements of ``part``)."""
        ranks = self._shared_memory.world_size
        slots = torch.frombuffer(
            self._shared_memory.memory,
            dtype=part.dtype,
            count=ranks * SLOT_BYTES // part.element_size(),
            offset=header_bytes(ranks) + self._turn % PHASES * ranks * SLOT_BYTES,
        )
        return slots.view(ranks, -1)[:, : part.numel()]

    def _arrive(self, size: int) -> None:
        line = self._lines[self.rank]
        line[FIRST_SIZE + self._turn % PHASES] = size
        line[TURN] = self._turn  # last: it says that the rest is there
        self._ring()

    def _ring(self) -> None:
        for rank in self._others:
            os.eventfd_write(self._shared_memory.eventfds[rank], 1)

    def _meet(self, size: int) -> None:
        until = time.monotonic() + self._spin
        for rank in self._others:
            line = self._lines[rank]
            while line[TURN] < self._turn:
                if line[LEFT] and line[TURN] < self._turn:
                    raise RankError(out_of_step(f"Rank {rank}", f"rank {self.rank}"))
                if time.monotonic() < until:
                    os.sched_yield()
                else:
                    self._sleep()
            if line[FIRST_SIZE + self._turn % PHASES] != size:
                what = f"Rank {rank} adds up something else than rank {self.rank} at this point"
                raise RankError(compose(what, instead="the same steps on all ranks"))

    def _sleep(self) -> None:
        eventfd = self._shared_memory.eventfds[self.rank]
        if select.select([eventfd], [], [], NAP)[0]:
            os.eventfd_read(eventfd)

    def leave(self) -> None:
        """Take part in no sum any more: ranks that wait for this one are told so."""
        self._lines[self.rank][LEFT] = 1
        self._ring()


@dataclass(frozen=True)
class _Later:
    """A sum that is done when it is waited for: no core is free before, as each has a rank."""

    sums: SharedSums
    tensor: Tensor

    def wait(self) -> None:
        self.sums.add(self.tensor)


shared: SharedSums | None = None
"""This rank's way through memory, if there is one."""


def all_reduce(tensor: Tensor) -> Work:
    """Begin to sum a contiguous ``tensor`` over all ranks, in place.

    Collective: sums are begun, and waited for, in the same order on all ranks.
    """
    if shared is not None and tensor.device.type == "cpu":
        return _Later(shared, tensor)
    work: Work = dist.all_reduce(tensor, async_op=True)
    return work
