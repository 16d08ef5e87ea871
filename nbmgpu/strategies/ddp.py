"""``ddp``: every rank holds the model, gradients are averaged during the backward pass.

The semantics are DistributedDataParallel's (Li et al., VLDB 2020, 2006.15704):
gradients are reduced in buckets, in the reverse order of the parameters, while
the rest of the backward pass still runs.  What differs is where it hooks in: on
the parameters themselves and not on a wrapped ``forward``.  So the user's model
stays what it is, and whatever reaches a parameter is right: ``model.forward``
called directly, several forwards before one backward, parts of a model that a
loss does not use, penalties and second-order terms.

Gradients are averaged by weight.  With rank r's weight w_r, the samples behind
its loss, a ``.grad`` ends up as sum(w_r * grad_r) / sum(w_r), the gradient of the
mean over the global batch, however unevenly it was split.  An earlier ``.grad``
that is the same on all ranks passes through unchanged, hence gradient
accumulation needs nothing special.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from nbmgpu.errors import StrategyError, compose

from . import profiles
from .base import Backward, RankContext, Strategy, Unit
from .profiles import Profile
from .reducer import Reducer, Reduction, end_all
from .replication import broadcast_unless_equal
from .trainable import Trainable

if TYPE_CHECKING:
    from torch import Tensor

COMPRESSED = (
    "With --compress gradients travel in half precision, {digits} digits: numbers are near one "
    "device's (about 1e-2 of a step), not equal to them."
)
DIGITS = {"bf16": "about two", "fp16": "about three"}
WIRES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FIND_UNUSED = (
    "--find-unused changes nothing here: parameters that a loss does not use are always found, "
    "by flags that travel with the gradients."
)


class DistributedDataParallel(Strategy):
    """Replicated parameters, averaged gradients."""

    profile: ClassVar[Profile] = profiles.DDP
    forgets: ClassVar[bool] = True

    def __init__(self, context: RankContext) -> None:
        """Start without any unit."""
        super().__init__(context)
        self._units: list[Unit] = []
        self._reducers: list[Reducer] = []
        self._resting: list[Trainable] = []

    def prepare(self, units: list[Unit]) -> None:
        """Give all ranks rank 0's values, then hook the parameters."""
        self._say_what_options_mean()
        for unit in units:
            broadcast_unless_equal([*unit.parameters(), *unit.buffers()])
        self._hook(units)

    def forget(self) -> None:
        """Let go of all units."""
        self._unhook()
        self._units = []

    def _say_what_options_mean(self) -> None:
        if self.tuning.compress is not None:
            text = COMPRESSED.format(digits=DIGITS[self.tuning.compress])
            self.say("compress", text)
        if self.tuning.find_unused:
            self.say("find-unused", FIND_UNUSED)

    def _hook(self, units: list[Unit]) -> None:
        self._unhook()
        self._units = units
        if self.world_size == 1:
            return  # its gradients are those of the whole batch: plain training
        # With several units, which of them a backward pass reaches first may differ
        # between ranks; then buckets leave at the end, unit by unit.
        trainable = [unit for unit in units if unit.trains]
        reduction = Reduction(self.tuning.bucket_views, self.tuning.static_graph, self._wire())
        overlap = len(trainable) == 1
        self._reducers = [Reducer(unit, overlap, reduction) for unit in trainable]
        self._resting = [Trainable(unit) for unit in units if not unit.trains]

    def _wire(self) -> torch.dtype | None:
        compress = self.tuning.compress
        return None if compress is None else WIRES[compress]

    def begin_backward(self, backward: Backward) -> None:
        """Wait for gradients, also of parameters that the cell has unfrozen meanwhile."""
        watched = (*(reducer.trainable for reducer in self._reducers), *self._resting)
        if any(each.changed() for each in watched):
            self._check_static()
            self._hook(self._units)
        for reducer in self._reducers:
            reducer.begin(backward)

    def _check_static(self) -> None:
        if any(reducer.always is not None for reducer in self._reducers):
            what = "--static-graph: the cell has frozen or unfrozen parameters in mid-training"
            raise StrategyError(compose(what, instead="%%mgpu without --static-graph"))

    def end_backward(self, backward: Backward) -> None:
        """Average what arrived."""
        self.took_part = end_all(self._reducers)

    def hooks_on(self, parameter: Tensor) -> int:
        """Return how many buckets wait for its gradient: one, or none."""
        return sum(id(parameter) in reducer.hooks for reducer in self._reducers)

    def copies(self) -> list[Tensor]:
        """Return all parameters."""
        return [parameter for unit in self._units for parameter in unit.parameters()]

    def release(self) -> None:
        """Take all hooks off."""
        self._unhook()

    def _unhook(self) -> None:
        for reducer in self._reducers:
            reducer.close()
        self._reducers, self._resting = [], []
