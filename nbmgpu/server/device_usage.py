"""What the machine's devices do at this moment: the processor, its memory, and GPUs by NVML."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil

from nbmgpu.devices.probe import Gpu, Machine, probe
from nbmgpu.formatting import format_count
from nbmgpu.system.limits import (
    available_memory,
    cpu_quota,
    limited_cpu_time,
    usable_cores,
    usable_memory,
)

from .payloads import DeviceUse

FRESH = 0.5
"""Seconds for which a reading is good enough for somebody else who asks."""

FIRST = 0.1
"""Seconds over which the cores are watched where there was no reading to compare with."""

STALE = 10.0
"""Seconds after which the last reading is no longer one to compare with."""

NO_NVML = "How busy the GPUs are is not known. Try: pip install nvidia-ml-py"


class Meters:
    """Reads all devices.  The machine is probed once: GPUs do not come and go.  Thread-safe."""

    def __init__(self) -> None:
        """Look at nothing yet."""
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._cores = CoreMeter()
        self._nvml: Any = None
        self._read_at = -FRESH
        self._devices: list[DeviceUse] = []

    def read(self) -> list[DeviceUse]:
        """Return all devices, at most half a second old."""
        with self._lock:
            if time.monotonic() - self._read_at >= FRESH:
                machine = self._machine = self._machine or self._find()
                self._devices = [self._processor(), *map(self._gpu, machine.gpus)]
                self._read_at = time.monotonic()
            return self._devices

    def close(self) -> None:
        """Let the driver go."""
        with self._lock:
            if self._nvml is not None:
                self._nvml.nvmlShutdown()
                self._nvml = None

    def _find(self) -> Machine:
        machine = probe()
        if machine.gpus and machine.why_not:
            self.problems.append(f"{machine.why_not}.")
        if machine.gpus and importlib.util.find_spec("pynvml") is None:
            self.problems.append(NO_NVML)
        elif machine.gpus:
            try:
                nvml: Any = importlib.import_module("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
            except Exception as error:  # NVML has errors of its own, and they change with it
                self.problems.append(f"The driver does not tell how busy the GPUs are: {error}.")
        return machine

    def _processor(self) -> DeviceUse:
        cores, total = usable_cores(), usable_memory()
        label = format_count(cores, "core")
        used = max(0, total - available_memory())
        return DeviceUse("cpu", "cpu", label, self._cores.read(), used, total)

    def _gpu(self, gpu: Gpu) -> DeviceUse:
        """Return what the driver says of ``gpu``; what it cannot say is -1."""
        nvml, use, used, total = self._nvml, -1.0, -1, gpu.memory_total or -1
        if nvml is not None:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                used, total = int(memory.used), int(memory.total)
                use = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            except Exception:  # a slice of a GPU has no utilisation of its own
                pass
        return DeviceUse(f"cuda:{gpu.index}", "gpu", gpu.name, use, used, total)


class CoreMeter:
    """How busy the cores are that this process may use: its container's, or the machine's."""

    def __init__(self) -> None:
        """Have nothing to compare with."""
        self._before: Times | None = None

    def read(self) -> float:
        """Return the share from 0 to 1 since the last reading, or since a moment ago."""
        before = self._before
        if before is None or time.monotonic() - before.moment > STALE:
            before = Times.now()
            time.sleep(FIRST)
        self._before = after = Times.now()
        passed = after.moment - before.moment
        if after.limited is not None and before.limited is not None:
            return _share(after.limited - before.limited, passed * cpu_quota())
        return _share(after.busy - before.busy, after.whole - before.whole)


@dataclass(frozen=True)
class Times:
    """Seconds of the allowed cores until a moment: busy, in all, and under a quota if any."""

    moment: float
    busy: float
    whole: float
    limited: float | None

    @classmethod
    def now(cls) -> Times:
        """Read the counters."""
        every = psutil.cpu_times(percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
        own = [times for core, times in enumerate(every) if core in allowed]
        idle = sum(times.idle + getattr(times, "iowait", 0.0) for times in own)
        # Guests' time is in the user's already.
        whole = sum(sum(t) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0) for t in own)
        return cls(time.monotonic(), whole - idle, whole, limited_cpu_time())


def _share(part: float, whole: float) -> float:
    return round(min(max(part / whole, 0.0), 1.0), 3) if whole > 0 else 0.0
