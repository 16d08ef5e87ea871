"""How much memory a rank needs: at most in the whole cell, and for its tensors between two steps.

The most, on the CPU, is resident memory beyond what the process had before the cell's data
came, without pages of files: code of libraries comes and goes as the system likes.  What the
heap keeps of tensors that are gone is in it, and so is what gloo needs to send.  On a GPU it is
what torch's allocator has handed out.
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

STATUS = Path("/proc/self/status")
KIB = 1024


class MemoryUsage:
    """Counts from the moment at which it is made."""

    def __init__(self) -> None:
        """Count from now on."""
        self._before = resident("VmRSS")
        self._data: set[int] = set()

    def exclude_loaded_data(self) -> None:
        """Know the tensors that have come: all ranks share them, as long as nobody trains them."""
        self._data = set(storages(everywhere()))

    def peak(self) -> int:
        """Return the most bytes of the host's memory so far."""
        return max(0, resident("VmHWM") - self._before)

    def gpu_peak(self) -> int:
        """Return the most bytes of this process's GPUs so far, -1 where it uses none."""
        if not torch.cuda.is_initialized():
            return -1
        devices = range(torch.cuda.device_count())
        return max(torch.cuda.max_memory_allocated(device) for device in devices)

    def tensor_bytes(self) -> int:
        """Return the bytes of all tensors, but for data that has come and is no model's."""
        found, kept = storages(everywhere()), storages(of_models())
        return sum(
            size for place, size in found.items() if place in kept or place not in self._data
        )


def everywhere() -> Iterator[torch.Tensor]:
    """Yield every tensor of this process that Python knows, and its gradient."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor):
            yield thing
            if thing.is_leaf and thing.grad is not None:
                yield thing.grad


def of_models() -> Iterator[torch.Tensor]:
    """Yield parameters, gradients, buffers and optimizer states, as far as they are here."""
    for thing in gc.get_objects():
        if issubclass(type(thing), nn.Module) and "_parameters" in thing.__dict__:
            yield from (
                t for t in (*thing._parameters.values(), *thing._buffers.values()) if _is(t)
            )
            yield from (p.grad for p in thing._parameters.values() if _is(p) and _is(p.grad))
        elif issubclass(type(thing), Optimizer):
            states = getattr(thing, "state", None)
            # Not by its own method, by which a cell would have the other ranks' states as well.
            kept = dict.values(states) if isinstance(states, dict) else ()
            yield from (
                t for state in kept if isinstance(state, dict) for t in state.values() if _is(t)
            )


def _is(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)


def storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the size of each storage behind ``tensors``, by its address; a shard's is its own."""
    sizes = {}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors:
            try:
                storage = getattr(tensor, "_local_tensor", tensor).untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
            except (AttributeError, RuntimeError, NotImplementedError):
                continue  # there is none, or it has no memory of its own
    return sizes


def resident(which: str) -> int:
    """Return the bytes in memory now (``VmRSS``) or at most (``VmHWM``), without files' pages.

    Linux alone tells these apart.
    """
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else KIB
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    # Sandboxes, such as gVisor's, tell less.
    here, files = (fields.get(name, "0").split()[0] for name in (which, "RssFile"))
    return KIB * (int(here) - int(files))
