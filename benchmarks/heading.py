"""What stands before the figures: machine, versions, the tools, and what the words mean."""

from __future__ import annotations

import datetime
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from .rivals import RIVALS

PACKAGES = ("torch", "nbmgpu", "ipykernel", "transformers")
"""Whose versions matter, besides the tools'."""

ROOT = Path(__file__).resolve().parent.parent

WORDS = """## How to read the tables

- **median**, **middle half**: of the rounds; the middle half is from the first to the third
  quartile.
- **ratio to torchrun**: the median of the ratios within rounds, as a machine's pace drifts from
  round to round. So it may differ from the ratio of the medians.
- **first all_reduce**: from sending the cell until both ranks have done their first one. The
  **whole cell** is over when the kernel has answered: what comes back is in the notebook.
- **PSS**: the memory of all processes of a run, where what several of them share counts once.
  **Taken of what is free** is how much less memory the machine has to give meanwhile.
- **phases** of a run of nbmgpu: *read, pickle*: the cell is parsed, what it reads is pickled;
  *fork*: until all ranks are there; *join, copy, map*: they find one another, while data is
  copied that they then map; *cell*: until the last rank has run it; *back, adopt*: what has
  changed comes home, and the kernel answers. In a profile, `time.sleep` is the kernel waiting for
  ranks.

A launch of nbmgpu appears with several figures. They end at different moments: at the first
all_reduce, when both ranks have read four numbers, or when the kernel has answered. And they
begin differently: where tools take turns, nbmgpu has been idle while the others ran, and the
machine's caches and memory are theirs; where it is alone, its runs follow at once on one another.
Compare figures of one table only."""


def heading() -> str:
    """Return what the figures depend on."""
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"# Measured on {datetime.date.today()}\n\n"
        f"{_processor()}, {psutil.cpu_count()} cores, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}; "
        f"load before: {psutil.getloadavg()[0]:.1f}.\n\n"
        f"Commit {_commit()}; {', '.join(f'{name} {_version(name)}' for name in PACKAGES)}."
    )


def legend() -> str:
    """Return the tools, and what the words mean."""
    cells = ((r.name, f"{r.package} {_version(r.package)}", r.processes, r.note) for r in RIVALS)
    rows = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join(
        [
            "## The tools",
            "",
            "| tool | package | its processes | note |",
            "|---|---|---|---|",
            *rows,
            "",
            WORDS,
        ]
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    with suppress(OSError):  # Linux; platform.processor() says nothing there
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
