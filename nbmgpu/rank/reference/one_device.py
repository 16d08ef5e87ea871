"""What the reference uses of the machine: one device, and memory that the ranks do not need."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nbmgpu.devices.nvidia import nvidia_gpus, shown_gpus
from nbmgpu.environment.accelerator import CUDA, is_accelerator
from nbmgpu.formatting import format_bytes
from nbmgpu.patches import PatchStack
from nbmgpu.rank.restart import WITHIN
from nbmgpu.runs.reference import has_steps, is_verified_now
from nbmgpu.runs.undo_log import FOLDER as UNDO_FOLDER
from nbmgpu.serialization import is_complete
from nbmgpu.strategies.strategy_options import ModelParallelOptions
from nbmgpu.system.limits import available_memory

if TYPE_CHECKING:
    from nbmgpu.runs.record import RunRecord
    from nbmgpu.runs.run import Run

PLENTY = 8
"""Times the size of the bundle that is so much memory that nobody can be short of it: each process
may have parameters, gradients, two states of an optimizer and activations."""

LEAST_MEMORY = 1 << 30
"""Bytes of memory without which there is no reference."""

PART = 0.5
"""The part of a device's free memory that the reference may use."""

POLL = 0.01
"""Seconds between two looks whether the ranks have taken a step."""


class NoReferenceError(Exception):
    """The cell is not run on one device; the message says why, if it would be of interest."""


def alone_on(device: str, record: RunRecord) -> RunRecord:
    """Return the record of a run of the same cell on ``device``."""
    options = record.options
    values = options.values | dataclasses.asdict(ModelParallelOptions())
    values |= {
        "exact": "auto",
        "strategy": "ddp",
        "fsdp_units": (),
        "cpu_offload": False,
        "compile": False,
    }
    launch = dataclasses.replace(options, strategy="ddp", values=values)
    return dataclasses.replace(record, devices=[device], nodes=1, options=launch)


def free_device(run: Run) -> str:
    """Return the device to use; first wait until ranks have taken a step if memory may be short.

    Raises:
        NoReferenceError: too little is left then, or they take no step.
    """
    record, deadline = run.record, time.monotonic() + WITHIN
    while not is_complete(record.storage.bundle):  # its size is not known before
        _pause(run, deadline)
    size = Path(record.storage.bundle).stat().st_size
    is_on_cpu = not is_accelerator(record.devices[0])
    if is_on_cpu and available_memory() > LEAST_MEMORY + PLENTY * size * (record.world_size + 1):
        return "cpu"
    while not has_steps(run.folder):
        _pause(run, deadline)
    if (run.folder / UNDO_FOLDER).exists():
        raise NoReferenceError("memory is short, and ranks have written files in their first step")
    device, free = ("cpu", available_memory()) if is_on_cpu else _freest(record)
    if free is not None and free < LEAST_MEMORY + PLENTY * size:
        needed = format_bytes(LEAST_MEMORY + PLENTY * size)
        raise NoReferenceError(f"it may need {needed}, which are not free on {device}")
    return device


def _freest(record: RunRecord) -> tuple[str, int | None]:
    """Return the GPU of a rank with the most free memory, and how much that is, if known.

    The driver knows, and for other accelerators nobody is asked: torch counts devices once, and
    this process hides all but one of them later.
    """
    visible = shown_gpus(nvidia_gpus()[0]).gpus
    free = {f"{CUDA}:{gpu.index}": gpu.memory_free for gpu in visible if not gpu.mig}
    known = [device for device in record.devices if free.get(device)]
    device = max(known, key=free.__getitem__, default=record.devices[0])
    return device, free.get(device) or None


def _pause(run: Run, deadline: float) -> None:
    if time.monotonic() > deadline or not is_verified_now(run.folder):
        raise NoReferenceError
    time.sleep(POLL)


def limit_memory(device: str) -> None:
    """Let this process use a part of the memory that is free on its ``device``."""
    if not is_accelerator(device):
        return
    module = torch.get_device_module(device.partition(":")[0])
    if hasattr(module, "mem_get_info") and hasattr(module, "set_per_process_memory_fraction"):
        free, total = module.mem_get_info()
        module.set_per_process_memory_fraction(PART * free / total)


def use_temporary_folder(folder: Path) -> None:
    """Let temporary files of this process be in ``folder``: others may be those of the notebook."""
    folder.mkdir()
    os.environ["TMPDIR"] = str(folder)
    PatchStack().replace("tempfile.tempdir", str(folder))
