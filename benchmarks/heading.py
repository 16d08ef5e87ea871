"""The head of RESULTS.md: machine, versions, tools, and how to read the tables."""

from __future__ import annotations

import datetime
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from .tools import TOOLS

PACKAGES = ("torch", "nbmgpu", "ipykernel", "transformers")
"""Packages whose versions are reported, besides the tools."""

ROOT = Path(__file__).resolve().parent.parent

HOW_TO_READ = """## How to read the tables

- **median**, **middle half**: over the rounds; the middle half is from the first to the third
  quartile.
- **ratio to torchrun**: the median of the ratios within rounds, because a machine's speed drifts
  from round to round. It may differ from the ratio of the medians.
- **first all_reduce**: from sending the cell until both ranks have finished their first
  all_reduce. The **whole cell** ends when the kernel has replied and the results are written back.
- **PSS**: the memory of all processes of a run, with shared memory counted once. **Decrease of
  free memory** is the largest decrease of the machine's available memory during the run.
- **phases** of a run of nbmgpu: *read, pickle*: the cell is parsed, and what it reads is pickled;
  *fork*: until all ranks are started; *join, copy, map*: rendezvous, while the kernel copies the
  data that ranks then map; *cell*: until the last rank has run it; *write-back*: changes are
  written back, and the kernel replies. In a profile, `time.sleep` is the kernel waiting for ranks.

Launches of nbmgpu appear in several tables, with different figures. They end at different moments:
at the first all_reduce, when both ranks have read four numbers, or when the kernel has replied.
They also begin differently: where tools take turns, nbmgpu was idle while the others ran, and the
machine's caches and memory are theirs; where it is alone, its runs follow at once on one another.
Compare figures of one table only."""


def heading() -> str:
    """Return the machine and the versions."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"# Measured on {datetime.date.today()}\n\n"
        f"{_processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}; "
        f"load before: {psutil.getloadavg()[0]:.1f}.\n\n"
        f"Commit {_commit()}; {', '.join(f'{name} {_version(name)}' for name in PACKAGES)}."
    )


def legend() -> str:
    """Return the tools, and how to read the tables."""
    cells = ((t.name, f"{t.package} {_version(t.package)}", t.processes, t.note) for t in TOOLS)
    rows = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join(
        [
            "## The tools",
            "",
            "| tool | package | its processes | note |",
            "|---|---|---|---|",
            *rows,
            "",
            HOW_TO_READ,
        ]
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    with suppress(OSError):  # Linux, where platform.processor() is empty
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return f"{commit} (changed)" if _git("status", "--porcelain") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
