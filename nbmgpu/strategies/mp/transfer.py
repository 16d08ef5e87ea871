"""Inputs and outputs of modules on other devices."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested mappings, lists, tuples and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    else:
        for _, inner in _items(value):
            yield from tensors_in(inner)


def device_in(value: Any) -> torch.device | None:
    """Return the device of the tensors in ``value``: of the first on a GPU, if there is one."""
    devices = [tensor.device for tensor in tensors_in(value)]
    return next((d for d in devices if d.type != "cpu"), devices[0] if devices else None)


def to_device(
    value: Any, device: torch.device, on_copy: Callable[[Tensor, Tensor], None] | None = None
) -> Any:
    """Return ``value`` with its tensors on ``device``.

    Beside tensors on a GPU, tensors on the CPU stay there, such as the lengths of packed sequences.
    Containers in which nothing moves stay the same objects.

    Args:
        value: tensors in nested mappings, lists, tuples and dataclasses.
        device: where to put them.
        on_copy: called with each tensor that moves, and its copy.
    """
    source = device_in(value)

    def moved(tensor: Tensor) -> Tensor:
        if tensor.device == device or source is None or tensor.device.type != source.type:
            return tensor
        copied = tensor.to(device)
        if on_copy is not None:
            on_copy(tensor, copied)
        return copied

    return _replaced(value, moved)


def _replaced(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return ``value`` with the results of ``function`` instead of its tensors."""
    if isinstance(value, Tensor):
        return function(value)
    before = _items(value)
    after = [(key, _replaced(inner, function)) for key, inner in before]
    if all(new is old for (_, new), (_, old) in zip(after, before, strict=True)):
        return value
    if isinstance(value, tuple):
        members = [inner for _, inner in after]
        return type(value)(*members) if hasattr(value, "_fields") else type(value)(members)
    result = copy.copy(value)
    for key, inner in after:
        if isinstance(value, Mapping | list):
            result[key] = inner
        else:
            object.__setattr__(result, key, inner)
    return result


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Return the members of a container with their keys; nothing for other values."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, list | tuple):
        return list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return []


class InputCopies:
    """The copies of a call's inputs on its device, and what the call has written to them."""

    def __init__(self) -> None:
        """Begin with no copies."""
        self._copies: list[tuple[Tensor, Tensor, int]] = []

    def to_device(self, value: Any, device: torch.device) -> Any:
        """Return ``value`` with its tensors on ``device``."""
        return to_device(value, device, self._add)

    def _add(self, source: Tensor, copied: Tensor) -> None:
        if not copied.is_inference():  # these do not count writes
            self._copies.append((source, copied, copied._version))

    def write_back(self) -> None:
        """Write to the inputs what the call has written to their copies, as ``x.relu_()``."""
        for source, copied, version in self._copies:
            if copied._version != version:
                source.copy_(copied)
