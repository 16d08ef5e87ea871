"""``python -m benchmarks [--rounds 5] [--only launch ship] [--write]``."""

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

WORKS = ("loading", "launch", "ship", "steps", "output", "growth")
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> None:
    """Measure, print, and with ``--write`` renew RESULTS.md."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=WORKS)
    parser.add_argument("--write", action="store_true", help="renew RESULTS.md, if all is measured")
    asked = parser.parse_args()
    if asked.write and (left := [name for name in WORKS if name not in asked.only]):
        parser.error(
            f"--write would throw away the figures of what is not measured: {', '.join(left)}. "
            "Leave --write out, and read the figures here"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that kernels are ended
    about = heading()  # before, as it tells how busy the machine is
    parts: list[str] = []
    results: list[Result] = []
    for name in asked.only:
        work = importlib.import_module(f"benchmarks.works.{name}")
        measured = work.measure(asked.rounds)
        results += measured
        parts.append(f"## {work.__doc__.strip().rstrip('.')}\n\n{markdown(measured)}")
        print(parts[-1], flush=True)
    print(summary(results))
    if asked.write:
        RESULTS.write_text("\n\n".join([about, summary(results), legend(), *parts]) + "\n")


if __name__ == "__main__":
    main()
