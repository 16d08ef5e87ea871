"""The devices of this machine: its cores, memory and GPUs, and what torch was built for.

GPUs are counted from outside, through NVML or ``nvidia-smi``.  The kernel must not create a CUDA
context, which would hold memory on a GPU that the ranks need, nor import torch if the notebook has
not.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import platform
import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmgpu.formatting import format_count
from nbmgpu.system.limits import usable_cores, usable_memory

from .nvidia import VARIABLE, Gpu, nvidia_gpus, shown_gpus


@dataclass(frozen=True)
class Machine:
    """What a run can use on this machine.

    Attributes:
        cores: that this process may use.
        memory: in bytes, that this process may use.
        gpus: those in ``CUDA_VISIBLE_DEVICES``, in its order; or devices of another type.
        cuda: whether torch can use them.
        why_not: why torch cannot, as the beginning of a sentence.
        hidden: why ``gpus`` are not all that the machine has, as a clause; may be empty.
        kind: the type of their devices in torch: ``cuda``, or that of another accelerator.
        lost: for each GPU that the driver lists and cannot use, a clause that says why.
        remedy: a sentence with what to type to use GPUs; may be empty.
    """

    cores: int
    memory: int
    gpus: tuple[Gpu, ...] = ()
    cuda: bool = False
    why_not: str = ""
    hidden: str = ""
    kind: str = "cuda"
    lost: tuple[str, ...] = ()
    remedy: str = ""


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
    present, reason = nvidia_gpus()
    visible, build = shown_gpus(present), torch_build()
    gpus = tuple(gpu for gpu in visible.gpus if not gpu.fault)
    lost = tuple(f"GPU {gpu.index} fails ({gpu.fault})" for gpu in visible.gpus if gpu.fault)
    kind, remedy = "cuda", ""
    if not present and (other := other_devices(build)):
        kind, gpus, why_not = other[0].name, other, ""
    elif not present:
        why_not = reason or _other_gpus(build) or "No GPU here"
    elif not gpus:
        why_not = " and ".join(lost) or visible.hidden
    elif build and not build.cuda:
        why_not = (
            f"torch is a {build.label} build and leaves {format_count(len(gpus), 'GPU')} unused"
        )
    else:
        why_not = ""
    if visible.mistake:
        remedy = f"To use all: %env {VARIABLE}={','.join(str(gpu.index) for gpu in present)}"
    elif lost:
        remedy = "What the driver says: !nvidia-smi"
    return Machine(
        cores=usable_cores(),
        memory=usable_memory(),
        gpus=gpus,
        cuda=not why_not,
        why_not=why_not,
        hidden=visible.hidden,
        kind=kind,
        lost=lost,
        remedy=remedy,
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
