"""Unpickles the state of a cell from a checkpoint, whose tensors are stored beside it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

TENSOR = "tensor"
"""The persistent id ``(TENSOR, (number, requires_grad))`` stands for a tensor stored beside."""

PATH = "path"
"""The persistent id ``(PATH, path)`` stands for an object that every run of the cell makes."""


class Copies(Sequence["Tensor"]):
    """Copies of tensors, each made when it is needed, and once."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        """Copy from ``tensors``, which may be mapped from a file."""
        self._tensors = tensors
        self._copies: dict[int, Tensor] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._tensors)

    def __getitem__(self, number: Any) -> Any:
        """Return the copy of a tensor."""
        if number not in self._copies:
            self._copies[number] = self._tensors[number].clone()
        return self._copies[number]


def loads(
    data: bytes, tensors: Sequence[Tensor], resolve: Callable[[str], Any] = lambda path: None
) -> Any:
    """Unpickle states or values.

    Args:
        data: the pickle.
        tensors: those that it refers to.
        resolve: returns the object with a path.
    """
    unpickler = _StateUnpickler(io.BytesIO(data))
    unpickler.tensors, unpickler.resolve = tensors, resolve
    return unpickler.load()


class _StateUnpickler(pickle.Unpickler):
    tensors: Sequence[Tensor]
    resolve: Callable[[str], Any]

    def persistent_load(self, pid: tuple[str, Any]) -> Any:
        kind, value = pid
        if kind == PATH:
            return self.resolve(value)
        number, requires_grad = value
        tensor = self.tensors[number]
        return tensor.requires_grad_() if requires_grad else tensor
