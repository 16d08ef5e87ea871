"""The results of all checks, as a table for people and as JSON for reports."""

from __future__ import annotations

import dataclasses
import importlib
import json
import platform
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nbmgpu.devices.probe import Machine
from nbmgpu.environment.packages import full_version

from .check import CheckResult, Status
from .setting import Setting

PACKAGES = ("nbmgpu", "torch", "transformers", "accelerate", "lightning", "deepspeed", "numpy")
"""Packages whose versions a report names."""

WIDTH = 110
"""Characters of a line."""


@dataclass
class Report:
    """The results, and where they come from.

    Attributes:
        machine: devices, versions and date.
        proves: what the setting proves.
        results: one per check, in order.
    """

    machine: dict[str, Any]
    proves: str
    results: list[CheckResult] = field(default_factory=list)

    @classmethod
    def of(cls, setting: Setting, machine: Machine) -> Report:
        """Return an empty report for a machine."""
        facts = {
            "date": time.strftime("%Y-%m-%d"),
            "gpus": [gpu.name for gpu in machine.gpus],
            "gpu_memory": [gpu.memory_total for gpu in machine.gpus],
            "driver": _driver(),
            "cores": machine.cores,
            "memory": machine.memory,
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
            "versions": {name: full_version(name) for name in PACKAGES},
        }
        return cls(facts, setting.proves)

    def count(self, status: Status) -> int:
        """Return how many checks have ended so."""
        return sum(result.status == status for result in self.results)

    def table(self) -> str:
        """Return a line per group, and every check that failed or has a warning."""
        groups = dict.fromkeys(result.group for result in self.results)
        lines = [f"{'':12}{'passed':>8}{'failed':>8}{'refused':>9}{'skipped':>9}{'seconds':>9}"]
        for group in groups:
            own = [result for result in self.results if result.group == group]
            counts = Counter(result.status for result in own)
            seconds = sum(result.seconds for result in own)
            lines.append(
                f"{group:12}{counts['passed']:8}{counts['failed']:8}{counts['refused']:9}"
                f"{counts['skipped']:9}{seconds:9.0f}"
            )
        named = [each for each in self.results if each.status == "failed" or each.warning]
        lines += ["", *map(summary_line, named)]
        return "\n".join([*lines, "", self.proves])

    def to_json(self) -> str:
        """Return the report as JSON, one result per line."""
        rows = [json.dumps(dataclasses.asdict(result)) for result in self.results]
        head = json.dumps({"machine": self.machine, "proves": self.proves})[:-1]
        return f'{head}, "results": [\n' + ",\n".join(rows) + "\n]}"

    def write(self, path: Path) -> None:
        """Write the report as JSON.

        Raises:
            OSError: it cannot be written there.
        """
        path.write_text(self.to_json() + "\n")


def summary_line(result: CheckResult) -> str:
    """Return one line for a result, cut to the width of a terminal."""
    line = f"{result.status:8} {result.group}: {result.name}"
    text = " ".join(f"{result.warning and f'{result.warning}: '}{result.text}".split())
    return f"{line}\n         {text}"[: len(line) + WIDTH] if text else line


def _driver() -> str:
    """Return the version of NVIDIA's driver; empty if there is none."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # NVML has many error types, and all mean that there is no driver
        return ""
