"""A device without hardware, ``standin``, for tests: see ``tests/standin/device.cpp``.

torch loads it when it is imported, by the entry point ``torch.backends``, as it loads the devices
of vendors.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch  # first: it loads the libraries that the next one needs
import torch.distributed as dist

import standin_native as native  # isort: skip

counts = native.counts
is_initialized = native.initialized


def _load() -> None:
    """Register the device; torch calls it."""
    torch.utils.rename_privateuse1_backend("standin")
    torch._register_device_module("standin", sys.modules[__name__])
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    if dist.is_available():
        dist.Backend.register_backend("standin_gloo", _collectives, devices=["standin"])


def _collectives(store: Any, rank: int, size: int, timeout: Any) -> Any:
    from torch.distributed import ProcessGroupGloo

    return native.collectives(ProcessGroupGloo(store, rank, size, timeout=timeout))


def sources() -> Counter[str]:
    """Return a counter that gets the line of each synchronization and copy from now on."""
    found: Counter[str] = Counter()

    def add(what: str) -> None:
        frames = [f for f in traceback.extract_stack()[:-1] if "/torch/" not in f.filename]
        lines = " < ".join(f"{f.filename.split('/')[-1]}:{f.lineno}" for f in frames[:-5:-1])
        found[f"{what}: {lines}"] += 1

    native.set_listener(add)
    return found


# What torch expects of the module of a device.


def is_available() -> bool:
    return device_count() > 0


@functools.cache
def device_count() -> int:
    shown = os.environ.get("STANDIN_VISIBLE_DEVICES", "0,1,2,3")
    return len(shown.split(",")) if shown else 0


def current_device() -> int:
    return torch.accelerator.current_device_index()


def set_device(device: Any) -> None:
    torch.accelerator.set_device_index(device)


def _is_in_bad_fork() -> bool:
    return native.bad_fork()


def _lazy_init() -> None:
    pass


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def memory_allocated(device: Any = None) -> int:
    return torch.accelerator.memory_allocated(device)


def max_memory_allocated(device: Any = None) -> int:
    return torch.accelerator.max_memory_allocated(device)


def reset_peak_memory_stats(device: Any = None) -> None:
    torch.accelerator.reset_peak_memory_stats(device)


def synchronize(device: Any = None) -> None:
    torch.accelerator.synchronize(device)


class Stream(torch.Stream):
    def __new__(cls, device: Any = None, priority: int = 0, **arguments: Any) -> torch.Stream:
        return torch.Stream("standin" if device is None else device, priority=priority)


class Event(torch.Event):
    def __new__(cls, enable_timing: bool = False, **arguments: Any) -> torch.Event:
        return torch.Event("standin", enable_timing=enable_timing)


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(device)


class device:
    def __init__(self, index: Any) -> None:
        given = index if isinstance(index, int) else torch.device(index).index
        self.index = -1 if given is None else given

    def __enter__(self) -> None:
        self.before = current_device()
        if self.index >= 0:
            set_device(self.index)

    def __exit__(self, *exception: object) -> None:
        set_device(self.before)


def stream(given: torch.Stream | None) -> AbstractContextManager[Any]:
    return nullcontext() if given is None else given


def _generator(device: Any) -> torch.Generator:
    index = device if isinstance(device, int) else torch.device(device).index
    return native.default_generator(-1 if index is None else index)


def get_rng_state(device: Any = -1) -> torch.Tensor:
    return _generator(device).get_state()


def set_rng_state(state: torch.Tensor, device: Any = -1) -> None:
    _generator(device).set_state(state)


def manual_seed(seed: int) -> None:
    _generator(-1).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        _generator(index).manual_seed(seed)
