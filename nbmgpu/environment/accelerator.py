"""The accelerator that torch uses here: the type of its devices, and what a process has of them.

``torch.accelerator`` knows CUDA and ROCm (both ``cuda``), XPU, MPS, and devices of other
vendors that register themselves with torch (``PrivateUse1``).  Functions that it lacks, or has
since torch 2.9 only, are those of the device's module, such as ``torch.cuda``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

CUDA = "cuda"

VISIBLE_DEVICES = {
    CUDA: "CUDA_VISIBLE_DEVICES",
    "xpu": "ZE_AFFINITY_MASK",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}
"""The environment variable that lists the devices of a process; others have their type's name."""


def accelerator_type() -> str:
    """Return the type of the devices, such as ``cuda``; ``cpu`` if this torch has none."""
    device = torch.accelerator.current_accelerator()
    return "cpu" if device is None else str(device.type)


def is_accelerator(device: str) -> bool:
    """Return whether ``device``, such as ``cuda:0``, is one of an accelerator."""
    return device.partition(":")[0] != "cpu"


def show_devices_only(kind: str, indices: Sequence[int]) -> None:
    """Hide all devices but ``indices`` from this process, before it uses any.

    Args:
        kind: their type.
        indices: among those that the process sees now.
    """
    variable = VISIBLE_DEVICES.get(kind, f"{kind.upper()}_VISIBLE_DEVICES")
    names = [name for name in os.environ.get(variable, "").split(",") if name]
    os.environ[variable] = ",".join(names[index] if names else str(index) for index in indices)


def memory_allocated() -> int | None:
    """Return the bytes of tensors on this process's devices; None if it has not used any."""
    _, module = initialized_module()
    if module is None:
        return None
    return sum(int(module.memory_allocated(index)) for index in range(module.device_count()))


def max_memory_allocated() -> int | None:
    """Return the most bytes of tensors on one of its devices; None if it has not used any."""
    _, module = initialized_module()
    if module is None:
        return None
    return max(int(module.max_memory_allocated(index)) for index in range(module.device_count()))


def initialized_module() -> tuple[str, Any]:
    """Return the type of the devices and their module, None if this process has not used any."""
    kind = accelerator_type()
    module: Any = None if kind == "cpu" else torch.get_device_module(kind)
    return kind, module if module is not None and module.is_initialized() else None
