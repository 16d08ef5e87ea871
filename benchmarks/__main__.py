"""``python -m benchmarks [--rounds 5] [--only launch ship] [--write]``."""

from __future__ import annotations

import argparse
import datetime
import importlib
import platform
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from .measure import Result
from .table import markdown
from .targets import summary

WORKS = ("loading", "launch", "ship", "steps", "output", "growth")
PACKAGES = (
    "torch", "nbmgpu", "torchrunx", "accelerate", "lightning", "ipyparallel", "nbdistributed",
    "ipykernel",
)  # fmt: skip
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> None:
    """Measure, print, and with ``--write`` renew RESULTS.md."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--write", action="store_true", help="renew RESULTS.md")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that kernels are ended
    machine = _machine()
    if left := [name for name in WORKS if name not in asked.only]:
        machine += f"\n\nNot in this run: {', '.join(left)}."
    parts: list[str] = []
    results: list[Result] = []
    for name in asked.only:
        work = importlib.import_module(f"benchmarks.works.{name}")
        measured = work.measure(asked.rounds)
        results += measured
        parts.append(f"## {work.__doc__.strip().rstrip('.')}\n\n{markdown(measured)}")
        print(parts[-1], flush=True)
        if asked.write:  # all that there is, so that what is cut off is not lost
            RESULTS.write_text("\n\n".join([machine, summary(results), *parts]) + "\n")
    print(summary(results))


def _machine() -> str:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"{package}: not installed")
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"# Measured on {datetime.date.today()}\n\n"
        f"{psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; load before: {psutil.getloadavg()[0]:.1f}.\n\n"
        f"{', '.join(found)}."
    )


if __name__ == "__main__":
    main()
