"""Gives random inputs to everything that reads data from outside, and reports what fails.

nice -n 19 .venv/bin/python tools/fuzz.py --inputs 1000000 --only events --seed 7
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests"), str(REPOSITORY / "tests" / "security")]

MOST_FAILURES = 20


def main() -> int:
    """Run the targets in turn; return 1 if one of them has failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=10_000, help="of each target")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each target")
    parser.add_argument("--only", action="append", help="a target; may be repeated")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="nbmgpu-fuzz-") as folder:
        os.environ["NBMGPU_RUNS"] = folder
        import pytest
        from fuzz_targets import Targets, cache_slow_functions, make_inputs

        cache_slow_functions(pytest.MonkeyPatch())

        targets = make_inputs(Targets(), given.seed)
        failures: dict[str, int] = {}
        total = 0
        print(f"seed {given.seed}", flush=True)
        for name in given.only or targets:
            begun, count = time.perf_counter(), 0
            while count < given.inputs and time.perf_counter() - begun < given.seconds:
                count += 1
                try:
                    targets[name]()
                except Exception as error:
                    at = traceback.extract_tb(error.__traceback__)[-1]
                    where = f"{name}: {type(error).__name__} in {at.filename}:{at.lineno}"
                    failures[where] = failures.get(where, 0) + 1
                    if failures[where] == 1 and len(failures) <= MOST_FAILURES:
                        traceback.print_exc()
            total += count
            print(f"{name}: {count:,} inputs in {time.perf_counter() - begun:.0f} s", flush=True)
    print(f"{total:,} inputs, {len(failures)} kinds of failures")
    for where, count in failures.items():
        print(f"  {count:6} {where}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
