"""The devices of this machine: its cores, memory and GPUs, and what torch was built for.

GPUs are counted from outside, through NVML or ``nvidia-smi``.  The kernel must not create a CUDA
context, which would hold memory on a GPU that the ranks need, nor import torch if the notebook has
not.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import runpy
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmgpu.formatting import format_count
from nbmgpu.system.limits import usable_cores, usable_memory

MIB = 1 << 20


@dataclass(frozen=True)
class Gpu:
    """One GPU, numbered as torch does; memory in bytes, 0 if the driver does not report it.

    With ``mig``, it is divided into slices (multi-instance GPU), and CUDA uses these.
    """

    index: int
    name: str
    memory_total: int = 0
    memory_free: int = 0
    uuid: str = ""
    mig: bool = False


@dataclass(frozen=True)
class Machine:
    """What a run can use on this machine.

    Attributes:
        cores: that this process may use.
        memory: in bytes, that this process may use.
        gpus: those in ``CUDA_VISIBLE_DEVICES``, in its order; or devices of another type.
        cuda: whether torch can use them.
        why_not: why torch cannot, as the beginning of a sentence.
        hidden: number of GPUs that ``CUDA_VISIBLE_DEVICES`` hides.
        kind: the type of their devices in torch: ``cuda``, or that of another accelerator.
    """

    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    cuda: bool = False
    why_not: str = ""
    hidden: int = 0
    kind: str = "cuda"


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version, and the CUDA, ROCm or XPU version it was built for."""

    version: str
    cuda: str | None
    hip: str | None
    xpu: str | None = None

    @property
    def release(self) -> tuple[int, ...]:
        """Major and minor version."""
        return tuple(int(part) for part in self.version.split(".")[:2])

    @property
    def label(self) -> str:
        """``CUDA 12.8``, ``ROCm 6.4``, ``XPU 20250302`` or ``CPU``."""
        named = {"CUDA": self.cuda, "ROCm": self.hip, "XPU": self.xpu}
        return next((f"{name} {version}" for name, version in named.items() if version), "CPU")


def torch_build() -> TorchBuild | None:
    """Return the build of torch without importing it; None if torch is not installed.

    It is read from ``torch/version.py``, a file without imports.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    facts = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    names = ("cuda", "hip", "xpu")
    return TorchBuild(str(facts["__version__"]), *(facts.get(name) for name in names))


def probe() -> Machine:
    """Return the devices of this machine as they are now."""
    present, reason = _present_gpus()
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible_gpus(present, shown)
    build = torch_build()
    kind = "cuda"
    if not present and (other := other_devices(build)):
        kind, gpus, why_not = other[0].name, other, ""
    elif not present:
        why_not = reason or _other_gpus(build) or "No GPU here"
    elif not gpus:
        why_not = f"CUDA_VISIBLE_DEVICES={shown} hides {format_count(len(present), 'GPU')}"
    elif build and not build.cuda:
        why_not = (
            f"torch is a {build.label} build and leaves {format_count(len(gpus), 'GPU')} unused"
        )
    else:
        why_not = ""
    return Machine(
        cores=usable_cores(),
        memory=usable_memory(),
        gpus=gpus,
        cuda=not why_not,
        why_not=why_not,
        hidden=max(0, len(present) - len(gpus)),
        kind=kind,
    )


def other_devices(build: TorchBuild | None) -> tuple[Gpu, ...]:
    """Return the devices that another package has registered with torch, as torch counts them.

    Torch is asked, and imported, only where such a package is installed.  Torch's own builds for
    ROCm and XPU, and MPS, are not used.
    """
    registered = importlib.metadata.entry_points(group="torch.backends")
    if build is None or build.hip or build.xpu or not registered:
        return ()
    torch: Any = importlib.import_module("torch")
    device = torch.accelerator.current_accelerator()
    if device is None or device.type in ("cuda", "mps"):
        return ()
    return tuple(Gpu(index, device.type) for index in range(torch.accelerator.device_count()))


def _other_gpus(build: TorchBuild | None) -> str:
    """Return the beginning of a sentence about GPUs that are not NVIDIA's; may be empty."""
    if build is not None and (build.hip or build.xpu):
        return f"nbmgpu uses NVIDIA's GPUs only, and torch is a {build.label} build"
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return "nbmgpu uses NVIDIA's GPUs only, and mps is a single device"
    return ""


def _present_gpus() -> tuple[list[Gpu], str]:
    """Return every GPU by the driver's index, or none and the reason why none can be listed."""
    if importlib.util.find_spec("pynvml"):
        try:
            return _query_nvml(), ""
        except Exception:  # NVML has many error types; nvidia-smi explains in words
            pass
    return _query_nvidia_smi()


def _query_nvml() -> list[Gpu]:
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    try:
        gpus = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name, uuid = pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle)
            mig = _is_divided(pynvml, handle)
            gpus.append(Gpu(index, name, memory.total, memory.free, uuid, mig))
        return gpus
    finally:
        pynvml.nvmlShutdown()


def _is_divided(pynvml: Any, handle: Any) -> bool:
    """Return whether a GPU is in MIG mode; most cannot be."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except Exception:  # not supported, by the GPU, the driver or this version of pynvml
        return False


def _query_nvidia_smi() -> tuple[list[Gpu], str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], ""
    query = "--query-gpu=index,name,memory.total,memory.free,uuid,mig.mode.current"
    command = [program, query, "--format=csv,noheader,nounits"]
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
    return [
        Gpu(int(index), name, _mebibytes(total), _mebibytes(free), uuid, mig == "Enabled")
        for index, name, total, free, uuid, mig in (row for row in rows if len(row) == 6)
    ], ""


def _mebibytes(cell: str) -> int:
    """Return a memory column in bytes; GPUs that share the CPU's memory have ``[N/A]``."""
    return int(cell) * MIB if cell.isdigit() else 0


def visible_gpus(present: Sequence[Gpu], shown: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA exposes, renumbered from 0.

    CUDA's rules: entries are indices or prefixes of UUIDs; the first invalid one ends the list, and
    a duplicate empties it.  Of several MIG slices, a process sees the first only
    (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/), also where GPUs are divided into
    slices and the variable is not set.

    Args:
        present: all GPUs of the machine.
        shown: the value of ``CUDA_VISIBLE_DEVICES``; None if it is not set.
    """
    if shown is None:
        return _one_slice(present)
    chosen: list[Gpu] = []
    for entry in shown.split(","):
        text = entry.strip()
        if text.startswith("MIG-"):
            return (Gpu(0, "MIG slice", uuid=text),) if not chosen else tuple(chosen)
        if text.isdigit():
            found = [gpu for gpu in present if gpu.index == int(text)]
        else:
            found = [gpu for gpu in present if text and gpu.uuid.startswith(text)]
        if len(found) != 1:
            break
        if found[0] in chosen:
            return ()
        chosen += found
    return _one_slice([dataclasses.replace(gpu, index=i) for i, gpu in enumerate(chosen)])


def _one_slice(gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return ``gpus``, or if one of them is divided, the only slice that CUDA exposes."""
    divided = [gpu for gpu in gpus if gpu.mig]
    if not divided:
        return tuple(gpus)
    return (Gpu(0, f"MIG slice of {divided[0].name}", uuid=divided[0].uuid, mig=True),)
