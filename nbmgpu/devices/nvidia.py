"""NVIDIA's GPUs as the driver lists them, and which of them CUDA shows to a process.

The driver is asked through NVML or ``nvidia-smi``, so that the process neither creates a CUDA
context nor lets torch count its devices, which torch does once only.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbmgpu.formatting import format_count

MIB = 1 << 20

VARIABLE = "CUDA_VISIBLE_DEVICES"

HIDING = {"", "-1", "none", "void", "nodevfiles"}
"""Entries of the variable that mean no GPU; any other one that names none is an error."""

ONE_SLICE = "CUDA shows only one slice of GPUs that are divided (MIG)"

NOT_TOLD = {"[N/A]", "[Not Supported]"}
"""What ``nvidia-smi`` has where a GPU works and does not tell."""

COLUMNS = "index,name,memory.total,memory.free,uuid,mig.mode.current"


@dataclass(frozen=True)
class Gpu:
    """One GPU, numbered as torch does; memory in bytes, 0 if the driver does not report it.

    With ``mig``, it is divided into slices (multi-instance GPU), and CUDA uses these.  With a
    ``fault``, the driver's words, it cannot be used.
    """

    index: int
    name: str
    memory_total: int = 0
    memory_free: int = 0
    uuid: str = ""
    mig: bool = False
    fault: str = ""


@dataclass(frozen=True)
class VisibleGpus:
    """What CUDA shows of the GPUs of a machine.

    Attributes:
        gpus: renumbered from 0, also those with a fault.
        hidden: why there are not all, as a clause; may be empty.
        mistake: whether the variable has an entry that cannot be meant.
    """

    gpus: tuple[Gpu, ...]
    hidden: str = ""
    mistake: bool = False


def nvidia_gpus() -> tuple[list[Gpu], str]:
    """Return every GPU by the driver's index, or none and the reason why none can be listed."""
    if importlib.util.find_spec("pynvml") is None:
        return _query_nvidia_smi()
    try:
        return _query_nvml(), ""
    except Exception as error:  # NVML has many error types; nvidia-smi explains in words
        gpus, reason = _query_nvidia_smi()
        if not gpus and not reason and "not found" not in str(error).lower():  # there is a driver
            reason = f"NVIDIA's driver gives no answer ({error})"
        return gpus, reason


def _query_nvml() -> list[Gpu]:
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    try:
        return [_nvml_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(pynvml: Any, index: int) -> Gpu:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name, uuid = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)
        total, free = _nvml_memory(pynvml, handle)
    except Exception as error:  # one GPU that has failed says nothing about the others
        return Gpu(index, "GPU", fault=str(error))
    mig = _is_divided(pynvml, handle)
    return Gpu(index, _text(name), total, free, _text(uuid), mig)


def _nvml_memory(pynvml: Any, handle: Any) -> tuple[int, int]:
    """Return total and free memory; 0 for GPUs that share the CPU's memory."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except Exception as error:
        if "not supported" in str(error).lower():
            return 0, 0
        raise
    return memory.total, memory.free


def _is_divided(pynvml: Any, handle: Any) -> bool:
    """Return whether a GPU is in MIG mode; most cannot be."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except Exception:  # not supported, by the GPU, the driver or this version of pynvml
        return False


def _text(name: str | bytes) -> str:
    """Return a name as text; pynvml before 11.5 gives bytes."""
    return name.decode() if isinstance(name, bytes) else name


def _query_nvidia_smi() -> tuple[list[Gpu], str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], ""
    command = [program, f"--query-gpu={COLUMNS}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return [], "nvidia-smi gives no answer"
    if result.returncode:
        message = (
            result.stdout.strip() or result.stderr.strip() or "no reason given"
        ).splitlines()[0]
        return [], f"nvidia-smi fails ({message.rstrip('.')})"
    rows = [[cell.strip() for cell in line.split(",")] for line in result.stdout.splitlines()]
    whole = [row for row in rows if len(row) >= COLUMNS.count(",") + 1]
    return [_nvidia_smi_gpu(position, row) for position, row in enumerate(whole)], ""


def _nvidia_smi_gpu(position: int, row: list[str]) -> Gpu:
    """Return the GPU of a row, in which ``[GPU is lost]`` may stand for any cell."""
    index, (total, free, uuid, mig) = row[0], row[-4:]
    number = int(index) if index.isdigit() else position
    uuid = "" if uuid in NOT_TOLD else uuid
    if fault := next((cell for cell in (index, uuid) if cell.startswith("[")), ""):
        return Gpu(number, "GPU", fault=fault.strip("[]"))
    name = ", ".join(row[1:-4])
    return Gpu(number, name, _mebibytes(total), _mebibytes(free), uuid, mig == "Enabled")


def _mebibytes(cell: str) -> int:
    """Return a memory column in bytes; GPUs that share the CPU's memory have ``[N/A]``."""
    return int(cell) * MIB if cell.isdigit() else 0


def shown_gpus(present: Sequence[Gpu]) -> VisibleGpus:
    """Return those of the ``present`` GPUs that CUDA shows to this process."""
    return visible_gpus(present, os.environ.get(VARIABLE))


def visible_gpus(present: Sequence[Gpu], shown: str | None) -> VisibleGpus:
    """Return the GPUs that CUDA exposes, renumbered from 0.

    CUDA's rules: entries are indices or prefixes of UUIDs; the first invalid one ends the list, and
    a duplicate empties it.  Of several MIG slices, a process sees the first only
    (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/), also where GPUs are divided into
    slices and the variable is not set.

    Args:
        present: all GPUs of the machine.
        shown: the value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    """
    if shown is None or not present:
        return _one_slice(VisibleGpus(tuple(present)))
    chosen: list[Gpu] = []
    wrong = ""
    for entry in shown.split(","):
        text = entry.strip()
        if text.startswith("MIG-"):
            if not chosen:
                return VisibleGpus((Gpu(0, "MIG slice", uuid=text, mig=True),), ONE_SLICE)
            break
        if text.isdigit():
            found = [gpu for gpu in present if gpu.index == int(text)]
        else:
            found = [gpu for gpu in present if text and gpu.uuid.startswith(text)]
        if len(found) != 1:
            if text.lower() not in HIDING:
                part = f" with {text}" if text != shown.strip() else ""
                wrong = f"names {'several GPUs' if found else 'no GPU'} of this machine{part}"
            break
        if found[0] in chosen:
            chosen, wrong = [], f"names GPU {found[0].index} of this machine twice"
            break
        chosen += found
    hidden = ""
    if wrong:
        numbers = ", ".join(str(gpu.index) for gpu in present)
        hidden = f"{VARIABLE}={shown} {wrong}, which has GPU {numbers}"
    elif more := len(present) - len(chosen):
        hidden = f"{VARIABLE}={shown} hides {format_count(more, 'GPU')}"
    gpus = tuple(dataclasses.replace(gpu, index=i) for i, gpu in enumerate(chosen))
    return _one_slice(VisibleGpus(gpus, hidden, bool(wrong)))


def _one_slice(visible: VisibleGpus) -> VisibleGpus:
    """Return what CUDA shows; if a GPU is divided, this is only one slice."""
    divided = [gpu for gpu in visible.gpus if gpu.mig]
    if not divided:
        return visible
    gpu = Gpu(0, f"MIG slice of {divided[0].name}", uuid=divided[0].uuid, mig=True)
    return VisibleGpus((gpu,), ONE_SLICE)
