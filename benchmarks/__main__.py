"""``python -m benchmarks [--rounds 5] [--only launch transfer] [--write]``."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from pathlib import Path

from .heading import heading, legend
from .measure import Result
from .table import markdown
from .targets import summary

WORKLOADS = (
    "loading",
    "launch",
    "transfer",
    "steps",
    "python_time",
    "model_parallel",
    "output",
    "scaling",
    "nodes",
    "node_launch",
)
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> None:
    """Measure and print; with ``--write``, update RESULTS.md."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--write", action="store_true", help="update RESULTS.md")
    arguments = parser.parse_args()
    if arguments.write and (left := [name for name in WORKLOADS if name not in arguments.only]):
        parser.error(
            f"--write would delete the figures that are not measured: {', '.join(left)}. "
            "Omit --write to print the figures"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # shuts the kernels down
    head = heading()  # first: it includes the load of the machine
    parts: list[str] = []
    results: list[Result] = []
    for name in arguments.only:
        workload = importlib.import_module(f"benchmarks.workloads.{name}")
        measured = workload.measure(arguments.rounds)
        results += measured
        parts.append(f"## {workload.__doc__.strip().rstrip('.')}\n\n{markdown(measured)}")
        print(parts[-1], flush=True)
    print(summary(results))
    if arguments.write:
        RESULTS.write_text("\n\n".join([head, summary(results), legend(), *parts]) + "\n")


if __name__ == "__main__":
    main()
