"""Measures the usage of the CPU, the memory and, through NVML, the GPUs."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil

from nbmgpu.devices.nvidia import Gpu
from nbmgpu.devices.probe import Machine, probe
from nbmgpu.formatting import format_count
from nbmgpu.system.limits import (
    available_memory,
    cpu_quota,
    limited_cpu_time,
    usable_cores,
    usable_memory,
)

from .payloads import DeviceUsage

CACHE_SECONDS = 0.5
"""Seconds for which a measurement is reused for other clients."""

FIRST_INTERVAL = 0.1
"""Seconds over which the CPU usage is measured when there is no earlier reading."""

MAX_INTERVAL = 10.0
"""Maximum age in seconds of the earlier reading that the CPU usage is computed from."""

NO_NVML = "GPU utilization is unknown. Try: pip install nvidia-ml-py"


class DeviceMonitor:
    """Measures all devices. The machine is probed once. Thread-safe."""

    def __init__(self) -> None:
        """Defer probing to the first reading."""
        self.problems: list[str] = []
        self._lock = threading.Lock()
        self._machine: Machine | None = None
        self._cores = CpuMonitor()
        self._nvml: Any = None
        self._read_at = -CACHE_SECONDS
        self._devices: list[DeviceUsage] = []

    def read(self) -> list[DeviceUsage]:
        """Return the usage of all devices, at most half a second old."""
        with self._lock:
            if time.monotonic() - self._read_at >= CACHE_SECONDS:
                machine = self._machine = self._machine or self._find()
                self._devices = [self._processor(), *map(self._gpu, machine.gpus)]
                self._read_at = time.monotonic()
            return self._devices

    def close(self) -> None:
        """Shut NVML down."""
        with self._lock:
            if self._nvml is not None:
                self._nvml.nvmlShutdown()
                self._nvml = None

    def _find(self) -> Machine:
        machine = probe()
        if machine.gpus and machine.why_not:
            self.problems.append(f"{machine.why_not}.")
        self.problems += [f"{clause}." for clause in machine.lost]
        if machine.gpus and importlib.util.find_spec("pynvml") is None:
            self.problems.append(NO_NVML)
        elif machine.gpus:
            try:
                nvml: Any = importlib.import_module("pynvml")
                nvml.nvmlInit()
                self._nvml = nvml
            except Exception as error:  # NVML's exception classes depend on its version
                self.problems.append(f"The driver does not report GPU utilization: {error}.")
        return machine

    def _processor(self) -> DeviceUsage:
        cores, total = usable_cores(), usable_memory()
        label = format_count(cores, "core")
        used = max(0, total - available_memory())
        return DeviceUsage("cpu", "cpu", label, self._cores.read(), used, total)

    def _gpu(self, gpu: Gpu) -> DeviceUsage:
        """Return the usage of ``gpu``; unknown values are -1."""
        nvml, use, used, total = self._nvml, -1.0, -1, gpu.memory_total or -1
        if nvml is not None:
            try:
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                used, total = int(memory.used), int(memory.total)
                use = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            except Exception:  # a MIG slice has no utilization of its own
                pass
        return DeviceUsage(f"cuda:{gpu.index}", "gpu", gpu.name, use, used, total)


class CpuMonitor:
    """Measures the usage of the cores available to this process."""

    def __init__(self) -> None:
        """Start without a reading."""
        self._before: CpuTimes | None = None

    def read(self) -> float:
        """Return the usage, from 0 to 1, since the last reading or over ``FIRST_INTERVAL``."""
        before = self._before
        if before is None or time.monotonic() - before.moment > MAX_INTERVAL:
            before = CpuTimes.now()
            time.sleep(FIRST_INTERVAL)
        self._before = after = CpuTimes.now()
        passed = after.moment - before.moment
        if after.limited is not None and before.limited is not None:
            return _share(after.limited - before.limited, passed * cpu_quota())
        return _share(after.busy - before.busy, after.whole - before.whole)


@dataclass(frozen=True)
class CpuTimes:
    """CPU time of the available cores in seconds: busy, total, and of the cgroup if limited."""

    moment: float
    busy: float
    whole: float
    limited: float | None

    @classmethod
    def now(cls) -> CpuTimes:
        """Read the counters."""
        every = psutil.cpu_times(percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(every))
        own = [times for core, times in enumerate(every) if core in allowed]
        idle = sum(times.idle + getattr(times, "iowait", 0.0) for times in own)
        # Guest time is included in user time.
        whole = sum(sum(t) - getattr(t, "guest", 0.0) - getattr(t, "guest_nice", 0.0) for t in own)
        return cls(time.monotonic(), whole - idle, whole, limited_cpu_time())


def _share(part: float, whole: float) -> float:
    return round(min(max(part / whole, 0.0), 1.0), 3) if whole > 0 else 0.0
