"""All-reduce of CPU tensors through shared memory.

gloo sends the data of ranks on one machine through sockets, from threads of its own: on two cores
an all-reduce of a kilobyte takes 1 ms, and through shared memory 30 us.  Every rank writes its part
into its slot, signals the others, and adds up all parts when all have arrived, in the order of
ranks.  So the sum has the same bits on all ranks.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from nbmgpu.errors import RankError, format_message, step_mismatch_message
from nbmgpu.strategies.communication import counter
from nbmgpu.system.shared_memory import (
    CALL_ORDER,
    FLAGS,
    INTERRUPTS,
    PHASES,
    SLOT_BYTES,
    SharedMemory,
)

from .number_stream import END, NumberStream
from .signals import NUMBERS, RankSignals

if TYPE_CHECKING:
    from torch import Tensor

SEQUENCE_NUMBER, FIRST_SIZE = 2, 3
"""Indices into a rank's line: the number of its all-reduce, and the bytes of its last two."""


class SharedMemoryAllReduce:
    """All-reduce through shared memory; every rank reduces the same tensors, in the same order.

    Attributes:
        signals: how ranks wait for each other.
        call_order: the calls of sharded modules, for ``CallOrderCheck``.
        interrupts: whether a rank has received a SIGINT, step by step.
        flags: hashes of flags, for ``all_reduce_flags``.
    """

    def __init__(self, shared_memory: SharedMemory, rank: int) -> None:
        """Initialize ``rank``, which was forked with ``shared_memory`` like all others."""
        self.rank = rank
        self.signals = RankSignals(shared_memory, rank)
        self.call_order = NumberStream(shared_memory, self.signals, CALL_ORDER)
        self.interrupts = NumberStream(shared_memory, self.signals, INTERRUPTS)
        self.flags = NumberStream(shared_memory, self.signals, FLAGS)
        self._shared_memory = shared_memory
        self._lines = shared_memory.lines()
        self._broken = False
        self._sequence_number = 0

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace ``tensor``, contiguous, by the sum over all ranks.

        Raises:
            RankError: ranks reduce different tensors, one has left, or this is a child process.
        """
        self.signals.check_process()
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
            offset=self._shared_memory.slots_at(self._sequence_number % PHASES),
        )
        return slots.view(ranks, -1)[:, : part.numel()]

    def _signal_arrival(self, size: int) -> None:
        line = self.rank * NUMBERS
        self._lines[line + FIRST_SIZE + self._sequence_number % PHASES] = size
        self._lines[line + SEQUENCE_NUMBER] = self._sequence_number  # last: then others use it
        self.signals.wake_others()

    def _wait_for_others(self, size: int) -> None:
        lines, number = self._lines, self._sequence_number
        for rank in self.signals.others:
            line = rank * NUMBERS
            self.signals.wait_for(rank, partial(_has_reached, lines, line, number))
            if lines[line + FIRST_SIZE + number % PHASES] != size:
                what = f"Ranks {rank} and {self.rank} reduce tensors of different sizes here"
                raise RankError(format_message(what, instead="the same steps on all ranks"))

    def pending(self) -> tuple[int, int] | None:
        """Return number and bytes of the all-reduce that this rank waits in, None if it does not.

        For another thread, which reports a hang.
        """
        number, line = self._sequence_number, self.rank * NUMBERS
        return (number, self._lines[line + FIRST_SIZE + number % PHASES]) if self._broken else None

    @property
    def has_left(self) -> bool:
        """Whether this rank takes part no longer."""
        return self.signals.has_left

    def leave(self) -> None:
        """Stop taking part: ranks that wait for this one raise ``RankError``.

        Raises:
            RankError: another rank makes a call that this one has not made.
        """
        difference = self.call_order.check(END)
        self.signals.leave()
        if difference is not None:
            raise RankError(step_mismatch_message(f"Rank {self.rank}", "another one"))

    def rejoin(self) -> None:
        """Take part again, once all ranks have left; a barrier must follow."""
        for stream in (self.call_order, self.interrupts, self.flags):
            stream.clear()
        self.signals.rejoin()


def _has_reached(lines: memoryview[int], line: int, number: int) -> bool:
    return lines[line + SEQUENCE_NUMBER] >= number
