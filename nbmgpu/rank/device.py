"""The device of a rank, and the threads and memory of its process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from .metrics.allocator import keep_freed_memory

if TYPE_CHECKING:
    from nbmgpu.runs.record import RunRecord


def enter_device(record: RunRecord, rank: int) -> str:
    """Let this process use the device of ``rank``; return ``cpu`` or ``cuda:0``."""
    torch.set_num_threads(record.threads)
    keep_freed_memory(record.world_size)
    if record.options.values.get("cpu"):  # as on a machine without a GPU
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    device = record.devices[rank]
    if not device.startswith("cuda"):
        return "cpu"
    _hide_other_gpus([int(index) for index in device.split(":")[1].split(",")])
    torch.cuda.set_device(0)
    return "cuda:0"


def _hide_other_gpus(indices: list[int]) -> None:
    """Hide the GPUs of other ranks, so that "cuda" and "cuda:0" mean the rank's own."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in visible.split(",") if name]
    chosen = [names[index] if names else str(index) for index in indices]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
    os.environ["LOCAL_RANK"] = "0"  # DeepSpeed, accelerate and others select the GPU of this number


def device_error(device: str) -> RuntimeError | None:
    """Return the error of a kernel on ``device``, after which CUDA refuses everything; else None.

    It waits for all kernels, as errors are reported asynchronously.
    """
    if device == "cpu":
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return error
    return None
