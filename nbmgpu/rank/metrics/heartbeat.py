"""The heartbeat of a rank: a thread that reports its progress and resource use once a second.

It runs whatever Python code the cell runs, so that a hanging rank can be distinguished from a busy
one.  Only compiled code that keeps the GIL stops it, or suspension of the process.  A heartbeat
reads two files of ``/proc`` and, on a GPU, queries the driver: well below a thousandth of the
rank's time.  It never draws random numbers or initializes CUDA.
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
from typing import TYPE_CHECKING, Any

import psutil

from nbmgpu.devices.probe import probe
from nbmgpu.rank.reporting.stdio import FLUSH_INTERVAL, flush_partial_line, log_size
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Heartbeat
from nbmgpu.system.limits import usable_cores, usable_memory

from .step_time import StepCost, StepTimerWindow

if TYPE_CHECKING:
    from nbmgpu.rank.hang_reports import HangReports
    from nbmgpu.rank.progress import TrainingProgress

    from .step_time import StepTimer

INTERVAL = 1.0
"""Seconds between heartbeats."""


class HeartbeatThread:
    """Emits heartbeats while the context is entered."""

    def __init__(
        self, events: EventWriter, log: Path, device: str, hang_reports: HangReports | None = None
    ) -> None:
        """Prepare the thread.

        Args:
            events: where heartbeats are emitted to.
            log: the log of this process.
            device: the device of this process.
            hang_reports: what it answers when ranks make no progress.
        """
        self._hang_reports = hang_reports
        self._events = events
        self._log = log
        self._on_gpu = device.startswith("cuda")
        self._gpus: GpuMonitor | None = None
        self._process = psutil.Process()
        self._process.cpu_percent()  # the next call measures from here
        self._machine = {"cores": usable_cores(), "memory_total": usable_memory()}
        self._window = StepTimerWindow()
        self._training: tuple[TrainingProgress, StepTimer] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nbmgpu-heartbeat", daemon=True)

    def follow(self, progress: TrainingProgress, timer: StepTimer) -> None:
        """Report the steps of ``progress`` and their times from now on."""
        self._training = progress, timer

    def __enter__(self) -> None:
        """Start the thread."""
        self._thread.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the thread and emit a last heartbeat."""
        self._stopped.set()
        self._thread.join(timeout=2 * INTERVAL)
        self._beat()

    def _run(self) -> None:
        next_beat = time.monotonic() + INTERVAL
        while not self._stopped.wait(FLUSH_INTERVAL):
            flush_partial_line()
            if time.monotonic() >= next_beat:
                self._beat()
                if self._hang_reports is not None:
                    self._hang_reports.update()
                next_beat += INTERVAL

    def _beat(self) -> None:
        with suppress(OSError):  # such as of a network: the next heartbeat may succeed
            self._emit()

    def _emit(self) -> None:
        progress, timer = self._training or (None, None)
        cost = self._window.take(timer) if timer else StepCost()
        self._events.emit(
            Heartbeat,
            step=progress.step if progress else 0,
            step_time=cost.step_time,
            own_time=cost.own_time,
            sent=[cost.sent, cost.collectives],
            cpu=self._process.cpu_percent(),
            memory=self._process.memory_info().rss,
            logged=log_size(self._log),
            passes=progress.backwards_begun if progress else 0,
            **self._machine,
            **self._gpu(progress is not None),
        )

    def _gpu(self, ready: bool) -> dict[str, float]:
        """Return the use of the GPU, once the rank has initialized it."""
        if not (self._on_gpu and ready):
            return {}
        if self._gpus is None:
            self._gpus = GpuMonitor()
        return allocated_memory() | self._gpus.usage()


class GpuMonitor:
    """Reads the use of the GPUs visible to this process from NVML; none without nvidia-ml-py."""

    def __init__(self) -> None:
        """Find the GPUs."""
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
        """Return utilization, used memory and total memory of the GPUs."""
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
        except Exception:  # a MIG instance has none
            return -1
        return sum(float(rate.gpu) for rate in rates) / len(rates)


def allocated_memory() -> dict[str, float]:
    """Return the memory that torch has allocated on this process's GPUs, if it has used any."""
    if "torch" not in sys.modules:
        return {}
    from nbmgpu.environment.accelerator import memory_allocated

    allocated = memory_allocated()
    return {} if allocated is None else {"gpu_memory": allocated}
