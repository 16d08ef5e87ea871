"""Outputs of a model that the cell holds at its end, when they are gathered for the notebook."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

from .sequence_tensor import SequenceTensor


class HeldOutputs:
    """The split tensors that models have returned, in the same order on all ranks."""

    def __init__(self) -> None:
        """Start without tensors."""
        self._count = 0
        self._held: dict[int, weakref.ref[SequenceTensor]] = {}

    def add(self, tensors: Sequence[SequenceTensor]) -> None:
        """Record what a call has returned."""
        for tensor in tensors:
            self._held[self._count] = weakref.ref(tensor)
            self._count += 1
        if len(self._held) > 64:  # nearly all are gone after the next step
            self._held = {n: ref for n, ref in self._held.items() if ref() is not None}

    def gather(self) -> None:
        """Gather what all ranks still hold; collective."""
        if not self._count:
            return
        held = {n: tensor for n, ref in self._held.items() if (tensor := ref()) is not None}
        flags = torch.zeros(self._count, dtype=torch.uint8)
        flags[list(held)] = 1
        dist.all_reduce(flags, dist.ReduceOp.MIN)
        for number in flags.nonzero().flatten().tolist():
            held[number].whole()
