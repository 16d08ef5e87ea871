"""Unpickles the state of a cell from a checkpoint, whose tensors are stored beside it."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

TENSOR = "tensor"
"""The persistent id ``(TENSOR, (number, requires_grad))`` stands for a tensor stored beside."""

PATH = "path"
"""The persistent id ``(PATH, path)`` stands for an object that every run of the cell makes."""


def loads(
    data: bytes, tensors: list[Tensor], resolve: Callable[[str], Any] = lambda path: None
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
    tensors: list[Tensor]
    resolve: Callable[[str], Any]

    def persistent_load(self, pid: tuple[str, Any]) -> Any:
        kind, value = pid
        if kind == PATH:
            return self.resolve(value)
        number, requires_grad = value
        tensor = self.tensors[number]
        return tensor.requires_grad_() if requires_grad else tensor
