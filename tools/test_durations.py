"""Update tests/durations.json from JUnit reports; files without a report keep their durations.

pytest -n 2 --junitxml=build/tests.xml; python tools/test_durations.py build/tests.xml ...
"""

from __future__ import annotations

import json
import statistics
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def mean_durations(reports: Iterable[Path]) -> dict[str, float]:
    """Return the mean duration of a test in seconds, by file."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            if case.find("skipped") is None:
                seconds[file_of(case.get("classname", ""))].append(float(case.get("time", 0)))
    return {name: round(statistics.mean(each), 2) for name, each in sorted(seconds.items()) if name}


def file_of(classname: str) -> str:
    """Return the path of the file of ``tests.rank.test_files.TestX``, or an empty string."""
    parts = classname.split(".")
    while parts:
        path = "/".join(parts) + ".py"
        if (REPOSITORY / path).is_file():
            return path
        parts.pop()
    return ""


if __name__ == "__main__":
    path = REPOSITORY / "tests" / "durations.json"
    durations = json.loads(path.read_text()) | mean_durations(map(Path, sys.argv[1:]))
    kept = {name: each for name, each in durations.items() if (REPOSITORY / name).is_file()}
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
