"""Numbers reduced in the same all-reduce as the gradients: flags of used parameters, losses.

They are the last elements of the last bucket, so that none of them needs its own collective.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from .scalars import Scalar

if TYPE_CHECKING:
    from torch import Tensor

    from .base import Backward

MAX_LOSSES = 8
"""Number of losses of one backward pass that can be reduced."""


def extras_size(parameters: int) -> int:
    """Return the number of elements for so many ``parameters``."""
    return parameters + 1 + MAX_LOSSES


def make_extras(memory: Tensor, parameters: int) -> ReductionExtras:
    """Return the extras in ``memory``, float32 or float64 of shape (extras_size(parameters),)."""
    kind = HostExtras if memory.device.type == "cpu" else DeviceExtras
    return kind(memory, parameters)


class ReductionExtras(ABC):
    """A flag per parameter (did a rank use it?), the weight, and the losses, in this order."""

    def __init__(self, memory: Tensor, parameters: int) -> None:
        """Use ``memory``."""
        self.flags = memory[:parameters]

    @abstractmethod
    def fill(self, used: list[int] | None, backward: Backward) -> None:
        """Write this rank's numbers, before the reduction.

        A loss with weight 0 may be nan, and counts as 0.

        Args:
            used: indices of the parameters that the pass used; None for all.
            backward: has the weight and the losses.
        """

    @property
    @abstractmethod
    def total(self) -> Scalar:
        """Sum of the ranks' weights, after the reduction."""

    @abstractmethod
    def write_losses(self, backward: Backward, divisor: Scalar) -> None:
        """Replace the losses of ``backward`` by their weighted sum over ranks, by ``divisor``.

        Where all weights are 0, they are nan, like the mean of an empty tensor.
        """


class HostExtras(ReductionExtras):
    """Extras in CPU memory, written and read one by one through NumPy, which is fastest."""

    def __init__(self, memory: Tensor, parameters: int) -> None:
        """Use ``memory``."""
        super().__init__(memory, parameters)
        self._numbers = memory.numpy()
        self._weight = parameters

    def fill(self, used: list[int] | None, backward: Backward) -> None:
        """Write this rank's numbers."""
        self._numbers[:] = 0
        self._numbers[slice(self._weight) if used is None else used] = 1
        weight = self._numbers[self._weight] = float(backward.weight)
        if weight:
            for index, loss, is_sum in self._losses(backward):
                self._numbers[index] = loss.item() * (1.0 if is_sum else weight)

    @property
    def total(self) -> Scalar:
        """Sum of the ranks' weights."""
        return float(self._numbers[self._weight])

    def write_losses(self, backward: Backward, divisor: Scalar) -> None:
        """Replace the losses of ``backward`` by their value over all ranks."""
        for index, loss, is_sum in self._losses(backward):
            value = float(self._numbers[index]) / (1.0 if is_sum else divisor)
            loss.data.fill_(value if self.total else torch.nan)

    def _losses(self, backward: Backward) -> Iterable[tuple[int, Tensor, bool]]:
        indices = range(self._weight + 1, len(self._numbers))
        return zip(indices, backward.scalars, backward.summed, strict=False)


class DeviceExtras(ReductionExtras):
    """Extras in GPU memory, never read by the host, which would wait for the GPU."""

    def __init__(self, memory: Tensor, parameters: int) -> None:
        """Use ``memory``."""
        super().__init__(memory, parameters)
        self._memory = memory
        self._weight, *self._slots = memory[parameters:].unbind()

    def fill(self, used: list[int] | None, backward: Backward) -> None:
        """Write this rank's numbers."""
        self._memory.zero_()
        self.flags[slice(None) if used is None else used] = 1
        weight = backward.weight
        self._memory[len(self.flags)] = weight
        for slot, loss, is_sum in self._losses(backward):
            value = loss.detach() * (1.0 if is_sum else weight)
            slot.copy_(torch.where(self._weight == 0, 0.0, value))

    @property
    def total(self) -> Scalar:
        """Sum of the ranks' weights."""
        return self._weight

    def write_losses(self, backward: Backward, divisor: Scalar) -> None:
        """Replace the losses of ``backward`` by their value over all ranks."""
        for slot, loss, is_sum in self._losses(backward):
            value = slot if is_sum else slot / divisor
            loss.data.copy_(torch.where(self._weight == 0, torch.nan, value))

    def _losses(self, backward: Backward) -> Iterator[tuple[Tensor, Tensor, bool]]:
        return zip(self._slots, backward.scalars, backward.summed, strict=False)
