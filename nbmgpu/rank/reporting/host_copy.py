"""Copies numbers from a GPU to the host, so that the host does not wait for the GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class _Copy(NamedTuple):
    """Numbers of one device.

    Attributes:
        indices: their places in the list.
        host: float64, shape (number of indices,), on the CPU.
        copied: the event after the copy; None for numbers of the CPU.
    """

    indices: list[int]
    host: torch.Tensor
    copied: torch.Event | None


class HostCopy:
    """Numbers and one-element tensors, copied to the host: one copy per device."""

    def __init__(self, values: list[Any]) -> None:
        """Start to copy ``values``; on a GPU, in the current stream."""
        self._values = list(values)
        groups: dict[torch.device, list[int]] = {}
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                groups.setdefault(value.device, []).append(index)
        self._copies = [_start(device, at, values) for device, at in groups.items()]

    def is_done(self) -> bool:
        """Return whether ``numbers`` will not wait."""
        return all(copy.copied is None or copy.copied.query() for copy in self._copies)

    def numbers(self) -> list[float]:
        """Return the values, when the copies are done."""
        for copy in self._copies:
            if copy.copied is not None and not copy.copied.query():
                copy.copied.synchronize()
            for index, number in zip(copy.indices, copy.host.tolist(), strict=True):
                self._values[index] = number
        return [float(value) for value in self._values]


def _start(device: torch.device, indices: list[int], values: list[Any]) -> _Copy:
    stacked = torch.stack([values[i].detach().reshape(()).double() for i in indices])
    if device.type == "cpu":
        return _Copy(indices, stacked, None)
    # Pinned: a copy to other memory makes the host wait.
    host = torch.empty(len(indices), dtype=torch.float64, device="cpu", pin_memory=True)
    host.copy_(stacked, non_blocking=True)
    copied = torch.Event(device)
    copied.record()
    return _Copy(indices, host, copied)
