"""What travels behind the gradients of a pass, so that none of it needs a collective of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from .scalars import Amount

if TYPE_CHECKING:
    from torch import Tensor

    from .base import Backward

LOSSES = 8
"""How many losses of one backward pass are made global."""


def tail_size(parameters: int) -> int:
    """Return how many numbers a tail has for so many ``parameters``."""
    return parameters + 1 + LOSSES


def make_tail(memory: Tensor, parameters: int) -> Tail:
    """Return the tail in ``memory``, float32 or float64 of shape (tail_size(parameters),)."""
    kind = HostTail if memory.device.type == "cpu" else DeviceTail
    return kind(memory, parameters)


class Tail(ABC):
    """A flag per parameter (did a rank use it?), the weight, and the losses, in this order."""

    def __init__(self, memory: Tensor, parameters: int) -> None:
        """Be in ``memory``."""
        self.flags = memory[:parameters]

    @abstractmethod
    def fill(self, used: list[int] | None, backward: Backward) -> None:
        """Say what this rank has: the places of parameters ``used`` (None: all), weight, losses.

        Losses that count nothing may be nan, and are taken for 0.
        """

    @property
    @abstractmethod
    def total(self) -> Amount:
        """The weights of all ranks, once the tail has been summed."""

    @abstractmethod
    def give(self, backward: Backward, divisor: Amount) -> None:
        """Make the losses of ``backward`` global: ranks' weighed ones, summed, by ``divisor``.

        Where ranks' weights are all 0, losses are nan, as the mean of nothing is.
        """


class HostTail(Tail):
    """Numbers in a CPU's memory: written and read one by one, which there is the fastest."""

    def __init__(self, memory: Tensor, parameters: int) -> None:
        """Be in ``memory``."""
        super().__init__(memory, parameters)
        self._numbers = memory.numpy()
        self._weight = parameters

    def fill(self, used: list[int] | None, backward: Backward) -> None:
        """Say what this rank has."""
        self._numbers[:] = 0
        self._numbers[slice(self._weight) if used is None else used] = 1
        weight = self._numbers[self._weight] = float(backward.weight)
        if weight:
            for place, loss, add in self._losses(backward):
                self._numbers[place] = loss.item() * (1.0 if add else weight)

    @property
    def total(self) -> Amount:
        """The weights of all ranks."""
        return float(self._numbers[self._weight])

    def give(self, backward: Backward, divisor: Amount) -> None:
        """Make the losses of ``backward`` global."""
        for place, loss, add in self._losses(backward):
            value = float(self._numbers[place]) / (1.0 if add else divisor)
            loss.data.fill_(value if self.total else torch.nan)

    def _losses(self, backward: Backward) -> Iterable[tuple[int, Tensor, bool]]:
        places = range(self._weight + 1, len(self._numbers))
        return zip(places, backward.scalars, backward.totals, strict=False)


class DeviceTail(Tail):
    """Numbers in a GPU's memory: never read, since that would wait for the GPU."""

    def __init__(self, memory: Tensor, parameters: int) -> None:
        """Be in ``memory``."""
        super().__init__(memory, parameters)
        self._memory = memory
        self._weight, *self._slots = memory[parameters:].unbind()

    def fill(self, used: list[int] | None, backward: Backward) -> None:
        """Say what this rank has."""
        self._memory.zero_()
        self.flags[slice(None) if used is None else used] = 1
        weight = backward.weight
        self._memory[len(self.flags)] = weight
        for slot, loss, add in self._losses(backward):
            value = loss.detach() * (1.0 if add else weight)
            slot.copy_(torch.where(self._weight == 0, 0.0, value))

    @property
    def total(self) -> Amount:
        """The weights of all ranks."""
        return self._weight

    def give(self, backward: Backward, divisor: Amount) -> None:
        """Make the losses of ``backward`` global."""
        for slot, loss, add in self._losses(backward):
            value = slot if add else slot / divisor
            loss.data.copy_(torch.where(self._weight == 0, torch.nan, value))

    def _losses(self, backward: Backward) -> Iterator[tuple[Tensor, Tensor, bool]]:
        return zip(self._slots, backward.scalars, backward.totals, strict=False)
