"""The tensors of a batch: iterates over them, keeps weak references, compares their memory."""

from __future__ import annotations

import types
import weakref
from collections import UserDict
from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from itertools import islice
from typing import Any

import torch

WeakTensors = tuple[weakref.ref[torch.Tensor], ...]

MAX_PARTS = 64
"""Parts of a container that are searched for tensors."""


def weak_tensors(batch: Any) -> WeakTensors:
    """Return weak references to the tensors of a batch."""
    return tuple(weakref.ref(tensor) for tensor in iter_tensors(batch))


def iter_tensors(item: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yield the tensors of a collated batch, or of the arguments of a call."""
    if isinstance(item, torch.Tensor):
        yield item
    elif depth and (parts := _parts(item)) is not None:
        for part in islice(parts, MAX_PARTS):
            yield from iter_tensors(part, depth - 1)


def _parts(item: Any) -> Iterable[Any] | None:
    """Return the parts of a batch: list items, fields, or values of a mapping (BatchEncoding)."""
    if isinstance(item, list | tuple):
        return item
    if isinstance(item, dict | UserDict):  # other mappings may compute their values on access
        return item.values()
    if is_dataclass(item) and not isinstance(item, type):
        fields: dict[str, Any] = vars(item)
        return fields.values()
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict) and _may_be_batch(item):
        return attributes.values()
    return None


def _may_be_batch(item: Any) -> bool:
    """Return whether an object may be a batch of a custom class, such as a graph batch."""
    excluded = type, types.ModuleType, types.FunctionType, torch.nn.Module
    return not isinstance(item, excluded)


def share_memory(tensors: Iterable[torch.Tensor], others: Iterable[torch.Tensor]) -> bool:
    """Return whether any of ``tensors`` overlaps in memory with any of ``others``."""
    ranges = [range_ for tensor in others if (range_ := _address_range(tensor))]
    return any(
        start < other_end and other_start < end
        for tensor in tensors
        if (range_ := _address_range(tensor))
        for (start, end), (other_start, other_end) in ((range_, other) for other in ranges)
    )


def _address_range(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the first address of a tensor's elements, and the one after the last, in bytes."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    try:
        start = tensor.data_ptr()
    except RuntimeError:  # inside a transform of torch.func
        return None
    return start, start + (last + 1) * tensor.element_size()
