"""Rebuilds tensors and arrays as views of received memory; pickles call these by name."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .address_space import AddressSpace
from .memory_blocks import NO_ADDRESS


class _LoadContext(threading.local):
    """What the functions below use; several threads may restore results at the same time."""

    memory: AddressSpace | None = None

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {}


_context = _LoadContext()


@contextmanager
def load_context(memory: AddressSpace, namespace: dict[str, Any]) -> Iterator[None]:
    """Set the memory and namespace that the functions below use."""
    before = _context.memory, _context.namespace
    _context.memory, _context.namespace = memory, namespace
    try:
        yield
    finally:
        _context.memory, _context.namespace = before


def loading_namespace() -> dict[str, Any]:
    """Return the namespace that functions of the notebook share on this side."""
    return _context.namespace


def load_array(
    space: str,
    address: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    writeable: bool,
) -> np.ndarray[Any, Any]:
    """Rebuild an array as a view of the memory that was at ``address``."""
    assert _context.memory is not None
    array: np.ndarray[Any, Any]
    if address == NO_ADDRESS:
        array = np.empty(shape, dtype)
    else:
        region, offset = _context.memory.find(space, address)
        array = np.ndarray(shape, dtype, region.buffer(), offset, strides)
    array.flags.writeable = writeable
    return array


def load_tensor(
    space: str,
    address: int,
    dtype: Any,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    requires_grad: bool,
    kind: type,
) -> Any:
    """Rebuild a tensor as a view of the memory that was at ``address``."""
    import torch

    memory = _context.memory
    assert memory is not None
    if address == NO_ADDRESS:
        tensor = torch.empty_strided(shape, stride, dtype=dtype, device=memory.device(space))
    else:
        region, offset = memory.find(space, address)
        item = dtype.itemsize
        reach = sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        storage, start = region.storage(offset, (reach + 1) * item, item)
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        tensor.set_(storage, start // item, shape, stride)
    if kind is torch.Tensor or not issubclass(kind, torch.Tensor):  # a placeholder
        return tensor.requires_grad_() if requires_grad else tensor
    return torch.Tensor._make_subclass(kind, tensor, requires_grad)


def reduce_conj_or_neg(tensor: Any) -> tuple[Any, ...] | None:
    """Reduce a lazily conjugated or negated view of other memory; return None for others."""
    if tensor.requires_grad or tensor.grad is not None or tensor.__dict__:
        return None
    if tensor.is_conj():
        return conjugated, (tensor.conj(),)
    return (negated, (negated(tensor),)) if tensor.is_neg() else None


def conjugated(tensor: Any) -> Any:
    """Return the conjugate as a view of the same memory."""
    return tensor.conj()


def negated(tensor: Any) -> Any:
    """Return the negative as a view of the same memory."""
    import torch

    return torch._neg_view(tensor)


def set_tensor_state(tensor: Any, state: tuple[Any, list[Any], list[Any], dict[str, Any]]) -> None:
    """Set ``.grad``, hooks and Python attributes of a rebuilt tensor."""
    grad, before, after, extra = state
    tensor.grad = grad
    for hook in before:
        tensor.register_hook(hook)
    for hook in after:
        tensor.register_post_accumulate_grad_hook(hook)
    tensor.__dict__.update(extra)
