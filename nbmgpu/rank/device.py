"""The device of a rank, and the threads and memory of its process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from nbmgpu.environment.accelerator import (
    CUDA,
    accelerator_type,
    is_accelerator,
    show_devices_only,
)

from .metrics.allocator import keep_freed_memory

if TYPE_CHECKING:
    from nbmgpu.runs.record import RunRecord


def enter_device(record: RunRecord, rank: int) -> str:
    """Let this process use the device of ``rank``; return ``cpu`` or ``cuda:0``.

    Raises:
        RuntimeError: the process sees the devices of other ranks.
    """
    torch.set_num_threads(record.threads)
    keep_freed_memory(record.world_size)
    if record.options.values.get("cpu"):  # as on a machine without a GPU
        for kind in {CUDA, accelerator_type()} - {"cpu"}:
            show_devices_only(kind, [])
    device = record.devices[rank]
    if not is_accelerator(device):
        return "cpu"
    kind, listed = device.split(":")
    indices = [int(index) for index in listed.split(",")]
    _hide_other_devices(kind, indices)
    if (seen := torch.accelerator.device_count()) != len(indices):
        raise RuntimeError(f"rank {rank} sees {seen} {kind} devices, and has {len(indices)}")
    torch.get_device_module(kind).set_device(0)  # torch.accelerator has it since torch 2.7
    return f"{kind}:0"


def _hide_other_devices(kind: str, indices: list[int]) -> None:
    """Hide the devices of other ranks, so that "cuda" and "cuda:0" mean the rank's own."""
    show_devices_only(kind, indices)
    os.environ["LOCAL_RANK"] = "0"  # DeepSpeed, accelerate and others select the GPU of this number


def device_error(device: str) -> RuntimeError | None:
    """Return the error of a kernel on ``device``, after which CUDA refuses everything; else None.

    It waits for all kernels, as errors are reported asynchronously.
    """
    if device == "cpu":
        return None
    try:
        torch.accelerator.synchronize()
    except RuntimeError as error:
        return error
    return None
