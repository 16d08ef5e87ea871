"""Tracks the bytes of all tensors that a step allocates, live and at peak."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CAST = torch.ops.aten._to_copy.default


class TensorMemoryTracker(TorchDispatchMode):
    """Counts the bytes of each storage from its allocation until it is freed.

    Attributes:
        live: bytes allocated now, without gradients.
        casts: of these, bytes of copies of parameters in another dtype.
        peak: maximum of ``live``.
        peak_with_gradients: maximum of ``live`` and gradients together.
        uncast_peak: maximum of ``live - casts``.
    """

    def __init__(self, model: nn.Module) -> None:
        """Track allocations of a step of ``model``; its own tensors are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self.peak_with_gradients = self.uncast_peak = 0
        self.live = self.casts = self._gradients = 0
        self._cast_keys: set[int] = set()
        self._parameters = {p.untyped_storage()._cdata for p in model.parameters()}
        self._is_gradient: dict[int, bool] = {}  # for each known storage
        self._finalizers: list[Any] = []
        for tensor in (*model.parameters(), *model.buffers(), *attribute_tensors(model)):
            self._is_gradient[tensor.untyped_storage()._cdata] = False
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._count_as_gradient)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count its results."""
        result = func(*args, **(kwargs or {}))
        if func is CAST and args[0].untyped_storage()._cdata in self._parameters:
            key = result.untyped_storage()._cdata
            if key not in self._is_gradient:
                self._cast_keys.add(key)
                self.casts += result.untyped_storage().nbytes()
        self.add(result)
        return result

    def add(self, value: Any) -> None:
        """Count the new tensors in ``value`` and update the peaks."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                self._add_storage(tensor)
        self.peak = max(self.peak, self.live)
        self.peak_with_gradients = max(self.peak_with_gradients, self.live + self._gradients)
        self.uncast_peak = max(self.uncast_peak, self.live - self.casts)

    def _add_storage(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._is_gradient:
            return
        size = storage.nbytes()
        self._is_gradient[key] = False
        self.live += size
        self._finalizers.append(weakref.finalize(storage, self._remove_storage, key, size))
        self._finalizers[-1].atexit = False

    def _remove_storage(self, key: int, size: int) -> None:
        if self._is_gradient.pop(key):
            self._gradients -= size
            return
        self.live -= size
        if key in self._cast_keys:
            self._cast_keys.remove(key)
            self.casts -= size

    def _count_as_gradient(self, parameter: nn.Parameter) -> None:
        """Move the accumulated gradient of ``parameter`` from ``live`` to the gradients."""
        if parameter.grad is None or parameter.grad.is_sparse:
            return
        storage = parameter.grad.untyped_storage()
        if self._is_gradient.get(storage._cdata) is False:
            self._is_gradient[storage._cdata] = True
            self.live -= storage.nbytes()
            self._gradients += storage.nbytes()


def attribute_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that modules hold as plain attributes."""
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):
                yield value
