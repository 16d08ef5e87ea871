"""``--accumulate N``: an optimizer step on every N batches, as if they were one batch.

The gradient of a group of batches is that of the mean over all of their samples, so N batches of B
samples give the same weights as one batch of N * B.  A group ends after N batches, or with the last
batch of a pass over the loader.  Until then the cell's ``step``, ``zero_grad``, gradient clipping
and the ``step`` of schedulers do nothing.

Until the group ends, the gradient of batch k has the weight T_k / S.  T_k is the number of samples
(or targets) behind its loss, and S the number of samples of the first batch.  At the end all are
multiplied by S / sum(T), because sum(T) is not known before.  Weights near 1 keep half precision
from overflowing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch

from nbmgpu.errors import StrategyError, format_message

if TYPE_CHECKING:
    from torch import Tensor, nn

    from nbmgpu.strategies.base import Unit

T = TypeVar("T")


class GradientAccumulation:
    """The current group of batches.  With ``size`` 1 every batch is a group.

    Attributes:
        size: number of batches per step.
        batches: number of batches of the group that are complete.
        is_last_batch: whether the current batch is the last of a pass over its loader.
        skipped_step: whether the cell's last call of ``step`` was skipped.
    """

    def __init__(self, size: int) -> None:
        """Take a step on every ``size`` batches."""
        self.size = size
        self.batches = 0
        self.is_last_batch = False
        self.skipped_step = False
        self._passes_of_batch = 0
        self._reference: Tensor | float | None = None
        self._batch_total: Tensor | float = 0.0
        self._group_total: Tensor | float = 0.0
        self._ids_with_gradient: set[int] = set()

    @property
    def on(self) -> bool:
        """Whether batches are grouped at all."""
        return self.size > 1

    @property
    def is_step_due(self) -> bool:
        """Whether the group ends with the current batch; always, when batches are not grouped."""
        return self.is_last_batch or self.batches + 1 >= self.size

    @property
    def keeps_gradients(self) -> bool:
        """Whether gradients of earlier batches are kept for the next step."""
        return self.on and self.batches > 0

    def with_last(self, items: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """Yield each of ``items`` and, where batches are grouped, whether it is the last."""
        if not self.on:
            yield from ((item, False) for item in items)
            return
        waiting: list[T] = []
        for item in items:
            if waiting:
                yield waiting.pop(), False
            waiting.append(item)
        yield from ((item, True) for item in waiting)

    def weigh(self, total: Tensor | float, samples: float) -> Tensor | float:
        """Return the weight of a backward pass until its group ends.

        Several passes on one batch add up; the first one sets the weight of the batch.

        Args:
            total: the sum of all ranks' weights behind the loss.
            samples: the samples of the batch, on all ranks.
        """
        if not self.on:
            return 1.0
        if self._passes_of_batch == 0:
            self._batch_total = total
            self._group_total = self._group_total + total
            self._reference = samples if self._reference is None else self._reference
        self._passes_of_batch += 1
        assert self._reference is not None
        return self._batch_total / self._reference

    def check(self, units: list[Unit]) -> None:
        """Refuse a cell whose gradients cannot accumulate; called before each backward pass.

        Raises:
            StrategyError: there are several optimizers, or gradients of the group were deleted.
        """
        if not self.on:
            return
        if sum(len(unit.optimizers) for unit in units) > 1:
            what = "--accumulate works for one optimizer; this cell has several"
            raise StrategyError(format_message(what, instead="accumulating in the cell itself"))
        deleted = self._ids_with_gradient - {id(p) for p in _with_gradient(units)}
        if self.keeps_gradients and deleted:
            what = "--accumulate keeps gradients between steps, but the cell has removed some"
            raise StrategyError(format_message(what, instead="optimizer.zero_grad()"))

    def rescale(self, units: list[Unit]) -> None:
        """Scale the gradients to the mean over the group, if it ends; after a backward pass."""
        if not self.on:
            return
        parameters = _with_gradient(units)
        self._ids_with_gradient = {id(p) for p in parameters}
        if self.is_step_due and self._reference is not None:
            scale = float(self._reference / self._group_total) if self._group_total else 0.0
            torch._foreach_mul_([local(p.grad) for p in parameters if p.grad is not None], scale)
            self._reference = self._group_total  # for a second pass on this batch

    def begin_batch(self, last: bool) -> None:
        """Begin a batch, perhaps the last of its pass; refuse a cell that does not step on each.

        Raises:
            StrategyError: the previous batch had a backward pass and no step.
        """
        if self.on and self._passes_of_batch:
            what = f"--accumulate {self.size} needs a cell that steps on every batch"
            allowed = "This one accumulates by itself"
            raise StrategyError(format_message(what, allowed, "%%mgpu without --accumulate"))
        self.is_last_batch = last

    def refuse_in(self, trainer: str, option: str) -> None:
        """Refuse to accumulate in the loop of ``trainer``, which has an ``option`` of its own.

        Raises:
            StrategyError: batches are grouped.
        """
        if self.on:
            what = f"--accumulate {self.size} does not go with {trainer}, which counts its steps"
            raise StrategyError(format_message(what, instead=option.format(self.size)))

    def takes_step(self) -> bool:
        """Count a step of the cell; return whether to take it."""
        done = not self.on or self.is_step_due
        self.skipped_step = not done
        self._passes_of_batch = 0
        self.batches = 0 if done else self.batches + 1
        if done:
            self._reference, self._group_total = None, 0.0
            self._ids_with_gradient = set()
        return done


def local(tensor: Tensor) -> Tensor:
    """Return the local tensor of a DTensor, which shares its memory; a plain tensor as it is."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _with_gradient(units: list[Unit]) -> list[nn.Parameter]:
    return [p for unit in units for p in unit.parameters() if p.grad is not None]
