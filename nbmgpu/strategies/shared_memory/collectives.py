"""Collectives of CPU tensors through shared memory.

gloo sends the data of ranks on one machine through sockets, from threads of its own: on two cores
an all-reduce of a kilobyte takes 1 ms, and through shared memory 30 us.  Every rank writes its part
into its slot, signals the others, and reads all parts when all have arrived.  Parts are added up in
the order of ranks, so a sum has the same bits on all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

SEQUENCE_NUMBER, FIRST_CONTENT = 2, 3
"""Indices into a rank's line: the number of its exchange, and the contents of its last two.

A content is the bytes that it exchanges, and the operation, as one number.
"""


@dataclass(frozen=True)
class Operation:
    """A collective.

    Attributes:
        name: in ``torch.distributed``.
        verb, activity: what ranks do in it, for error messages.
    """

    name: str
    verb: str
    activity: str


OPERATIONS = ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = (
    Operation("all_reduce", "reduce", "reduced gradients"),
    Operation("all_gather", "gather", "gathered parameters"),
    Operation("reduce_scatter", "reduce", "reduced gradients"),
)


class SharedMemoryCollectives:
    """Collectives of all ranks; every rank calls the same ones, in the same order.

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
        self._running: Operation | None = None
        self._sequence_number = 0

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor) -> None:
        """Replace ``tensor``, contiguous, by the sum over all ranks.

        Raises:
            RankError: ranks reduce different tensors, one has left, or this is a child process.
        """
        self._begin(ALL_REDUCE, tensor)
        flat = tensor.view(-1)
        fits = (
            tensor.nbytes <= SLOT_BYTES
        )  # as most do: to split it would take as long as to sum it
        for part in (flat,) if fits else flat.split(SLOT_BYTES // tensor.element_size()):
            self._exchange(ALL_REDUCE, part, partial(torch.sum, dim=0, out=part))
        self._end()

    @torch.no_grad()
    def all_gather(self, output: Tensor, own: Tensor) -> None:
        """Write the ranks' ``own`` tensors, contiguous, to ``output``, in the order of ranks.

        Raises:
            RankError: as ``all_reduce``.
        """
        self._begin(ALL_GATHER, own)
        width = SLOT_BYTES // own.element_size()
        columns = output.view(self._shared_memory.world_size, own.numel()).split(width, 1)
        for part, gathered in zip(own.view(-1).split(width), columns, strict=True):
            self._exchange(ALL_GATHER, part, gathered.copy_)
        self._end()

    @torch.no_grad()
    def reduce_scatter(self, output: Tensor, full: Tensor) -> None:
        """Write this rank's part of the sum over all ranks of ``full``, contiguous, to ``output``.

        Raises:
            RankError: as ``all_reduce``.
        """
        self._begin(REDUCE_SCATTER, full)
        ranks = self._shared_memory.world_size
        width = SLOT_BYTES // full.element_size() // ranks
        columns = full.view(ranks, output.numel()).split(width, 1)
        for part, out in zip(columns, output.view(-1).split(width), strict=True):
            self._exchange(REDUCE_SCATTER, part, partial(self._sum_own, out))
        self._end()

    def _sum_own(self, out: Tensor, parts: Tensor) -> None:
        """Sum this rank's rows of ``parts``, shape (world size, world size * n), into ``out``."""
        rows = parts.view(len(parts), len(parts), out.numel())
        torch.sum(rows[:, self.rank], 0, out=out)

    def _begin(self, operation: Operation, tensor: Tensor) -> None:
        """Begin a collective; until ``_end``, an exception leaves this rank unable to go on."""
        self.signals.check_process()
        if self._running is not None:
            what = f"Rank {self.rank} was interrupted while it {self._running.activity}"
            raise RankError(format_message(what, "Its state is unknown", "the cell again"))
        self._running = operation
        counter.count(tensor.nbytes)

    def _end(self) -> None:
        self._running = None

    def _exchange(
        self, operation: Operation, part: Tensor, read: Callable[[Tensor], object]
    ) -> None:
        """Write ``part`` for the others, and read the parts of all ranks.

        Args:
            operation: what this is a part of.
            part: this rank's, which fits into a slot.
            read: gets all parts, shape (world size, elements of ``part``).
        """
        self._sequence_number += 1
        slots = self._slots(part.dtype)[:, : part.numel()]
        slots[self.rank].view(part.shape).copy_(part)
        content = part.nbytes * len(OPERATIONS) + OPERATIONS.index(operation)
        self._signal_arrival(content)
        self._wait_for_others(content)
        read(slots)

    def _slots(self, dtype: torch.dtype) -> Tensor:
        """Return the ranks' slots of this exchange, shape (world size, elements of a slot)."""
        ranks = self._shared_memory.world_size
        slots = torch.frombuffer(
            self._shared_memory.memory,
            dtype=dtype,
            count=ranks * SLOT_BYTES // dtype.itemsize,
            offset=self._shared_memory.slots_at(self._sequence_number % PHASES),
        )
        return slots.view(ranks, -1)

    def _signal_arrival(self, content: int) -> None:
        line = self.rank * NUMBERS
        self._lines[line + FIRST_CONTENT + self._sequence_number % PHASES] = content
        self._lines[line + SEQUENCE_NUMBER] = self._sequence_number  # last: then others use it
        self.signals.wake_others()

    def _wait_for_others(self, content: int) -> None:
        lines, number = self._lines, self._sequence_number
        for rank in self.signals.others:
            line = rank * NUMBERS
            self.signals.wait_for(rank, partial(_has_reached, lines, line, number))
            if (other := lines[line + FIRST_CONTENT + number % PHASES]) != content:
                what = _difference(rank, other, self.rank, content)
                raise RankError(format_message(what, instead="the same steps on all ranks"))

    def pending(self) -> tuple[str, int, int] | None:
        """Return name, number and bytes of the collective that this rank is in, None outside.

        For another thread, which reports a hang.
        """
        number, line, running = self._sequence_number, self.rank * NUMBERS, self._running
        if running is None:
            return None
        content = self._lines[line + FIRST_CONTENT + number % PHASES]
        return running.name, number, content // len(OPERATIONS)

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


def _difference(rank: int, content: int, own_rank: int, own_content: int) -> str:
    other, own = (OPERATIONS[each % len(OPERATIONS)] for each in (content, own_content))
    if other is own:
        return f"Ranks {rank} and {own_rank} {own.verb} tensors of different sizes here"
    return f"Rank {rank} calls {other.name} where rank {own_rank} calls {own.name}"


def _has_reached(lines: memoryview[int], line: int, number: int) -> bool:
    return lines[line + SEQUENCE_NUMBER] >= number
