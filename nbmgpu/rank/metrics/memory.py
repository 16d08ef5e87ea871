"""Measures the memory of a rank: the peak during the cell, and its tensors between two steps.

On the CPU, the peak is resident memory beyond what the process used before the cell's data was
loaded, without file-backed pages: the system maps and evicts library code as it likes.  It
includes freed tensors that the heap keeps, and gloo's send buffers.  On a GPU, it is what torch's
allocator has allocated.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

from nbmgpu.environment.accelerator import max_memory_allocated

STATUS = Path("/proc/self/status")
KIB = 1024


class MemoryUsage:
    """Measures memory from the moment when it is created."""

    def __init__(self) -> None:
        """Record the current resident memory."""
        self._before = resident_bytes("VmRSS")
        self._data: set[int] = set()

    def exclude_loaded_data(self) -> None:
        """Exclude the current tensors from ``tensor_bytes``: ranks share them, unless trained."""
        self._data = set(storage_sizes(all_tensors()))

    def peak(self) -> int:
        """Return the peak of the host's memory so far, in bytes."""
        return max(0, resident_bytes("VmHWM") - self._before)

    def gpu_peak(self) -> int:
        """Return the peak of memory on this process's GPUs so far in bytes, -1 if it uses none."""
        peak = max_memory_allocated()
        return -1 if peak is None else peak

    def tensor_bytes(self) -> int:
        """Return the bytes of all tensors, except for loaded data that belongs to no model."""
        sizes, of_models = storage_sizes(all_tensors()), storage_sizes(model_tensors())
        return sum(
            size
            for address, size in sizes.items()
            if address in of_models or address not in self._data
        )


def all_tensors() -> Iterator[torch.Tensor]:
    """Yield every tensor that Python's garbage collector tracks, and its gradient."""
    for value in gc.get_objects():
        if issubclass(type(value), torch.Tensor):
            yield value
            if value.is_leaf and value.grad is not None:
                yield value.grad


def model_tensors() -> Iterator[torch.Tensor]:
    """Yield parameters, gradients, buffers and optimizer states that are local to this rank."""
    for value in gc.get_objects():
        if issubclass(type(value), nn.Module) and "_parameters" in value.__dict__:
            yield from (
                t for t in (*value._parameters.values(), *value._buffers.values()) if _is_tensor(t)
            )
            yield from (
                p.grad for p in value._parameters.values() if _is_tensor(p) and _is_tensor(p.grad)
            )
        elif issubclass(type(value), Optimizer):
            states = getattr(value, "state", None)
            # Not by its own ``values``, which would gather the other ranks' states for a cell.
            local = dict.values(states) if isinstance(states, dict) else ()
            yield from (
                t
                for state in local
                if isinstance(state, dict)
                for t in state.values()
                if _is_tensor(t)
            )


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


def storage_sizes(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the size in bytes of each storage of ``tensors``, by its address.

    A sharded tensor counts with its local shard.
    """
    sizes = {}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors:
            try:
                storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            except (AttributeError, RuntimeError, NotImplementedError):
                continue  # it has no storage, or one without memory
    return sizes


def resident_bytes(field: str) -> int:
    """Return the resident memory without file-backed pages, in bytes.

    Only Linux distinguishes them; other systems report the peak with them.

    Args:
        field: ``VmRSS`` for the current value, ``VmHWM`` for the peak.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else KIB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    # Sandboxes such as gVisor report fewer fields.
    resident, files = (fields.get(name, "0").split()[0] for name in (field, "RssFile"))
    return KIB * (int(resident) - int(files))
