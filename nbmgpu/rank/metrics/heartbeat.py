"""How a rank is: a thread that tells once a second how far it is and what it uses.

It goes on whatever Python code the cell runs, so that a rank that hangs can be told from one
that is busy.  Only compiled code that keeps the GIL silences it, as a suspended process is
silent.  A beat reads two files of the kernel's and, on a GPU, asks the driver: well below a
thousandth of the rank's time.  Nothing of it touches random streams or starts CUDA.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from nbmgpu.devices.probe import probe
from nbmgpu.rank import session
from nbmgpu.rank.reporting.stdio import PATIENCE, flush_unfinished, log_size
from nbmgpu.runs.events import EventWriter, Vitals
from nbmgpu.system.limits import usable_cores, usable_memory

from .step_time import StepTimerWindow

INTERVAL = 1.0
"""Seconds between beats."""


class Heartbeat:
    """Beats while it is entered."""

    def __init__(self, events: EventWriter, log: Path, device: str) -> None:
        """Write to ``events`` about this process, which logs to ``log`` and has ``device``."""
        self._events = events
        self._log = log
        self._on_gpu = device.startswith("cuda")
        self._gpus: GpuMonitor | None = None
        self._process = psutil.Process()
        self._process.cpu_percent()  # the next one counts from here
        self._machine = {"cores": usable_cores(), "memory_total": usable_memory()}
        self._stretch = StepTimerWindow()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbmgpu-heartbeat", daemon=True)

    def __enter__(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Beat a last time and stop."""
        self._over.set()
        self._thread.join(timeout=2 * INTERVAL)
        self._beat()

    def _run(self) -> None:
        next_beat = time.monotonic() + INTERVAL
        while not self._over.wait(PATIENCE):
            flush_unfinished()
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat += INTERVAL

    def _beat(self) -> None:
        with suppress(OSError):  # the disk is full: the next beat may find room
            self._tell()

    def _tell(self) -> None:
        current = session.current
        step_time, own_time = self._stretch.take(current.pace) if current else (0.0, 0.0)
        self._events.emit(
            Vitals,
            step=current.step if current else 0,
            step_time=step_time,
            own_time=own_time,
            cpu=self._process.cpu_percent(),
            memory=self._process.memory_info().rss,
            logged=log_size(self._log),
            passes=current.begun if current else 0,
            **self._machine,
            **self._gpu(current is not None),
        )

    def _gpu(self, ready: bool) -> dict[str, float]:
        """Return what the GPU does, once the rank has entered it."""
        if not (self._on_gpu and ready):
            return {}
        if self._gpus is None:
            self._gpus = GpuMonitor()
        return self._gpus.usage() | allocated_memory()


class GpuMonitor:
    """The GPUs that this process sees, as the driver knows them; none without nvidia-ml-py."""

    def __init__(self) -> None:
        """Look for them."""
        self._nvml: Any = None
        self._handles: list[Any] = []
        if importlib.util.find_spec("pynvml") is None:
            return
        try:
            nvml = importlib.import_module("pynvml")
            nvml.nvmlInit()
            self._handles = [nvml.nvmlDeviceGetHandleByUUID(g.uuid) for g in probe().gpus]
            self._nvml = nvml
        except Exception:  # NVML has many errors of its own: no driver, no permission, ...
            self._handles = []

    def usage(self) -> dict[str, float]:
        """Return how busy they are, and the memory that is used and that there is."""
        if not self._handles:
            return {}
        try:
            memory = [self._nvml.nvmlDeviceGetMemoryInfo(handle) for handle in self._handles]
        except Exception:
            return {}
        return {
            "gpu": self._utilization(),
            "gpu_memory": sum(int(m.used) for m in memory),
            "gpu_memory_total": sum(int(m.total) for m in memory),
        }

    def _utilization(self) -> float:
        try:
            rates = [self._nvml.nvmlDeviceGetUtilizationRates(handle) for handle in self._handles]
        except Exception:  # a MIG slice has none
            return -1
        return sum(float(rate.gpu) for rate in rates) / len(rates)


def allocated_memory() -> dict[str, float]:
    """Return what torch's tensors hold on this process's GPUs; nothing before CUDA is used."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    devices = range(torch.cuda.device_count())
    return {"gpu_allocated": sum(torch.cuda.memory_allocated(device) for device in devices)}
