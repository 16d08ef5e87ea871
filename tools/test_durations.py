"""Update tests/durations.json from JUnit reports; what is not in a report keeps its duration.

Functions that take a second or more get their own entry: the cases of one function are alike, those
of a file are not, and its matrix may consist of the slow ones.

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


SLOW = 1.0
"""Seconds from which a function has its own entry."""


def mean_durations(reports: Iterable[Path]) -> dict[str, float]:
    """Return the mean duration of a test in seconds, by slow function, and by file for others."""
    functions: dict[tuple[str, str], list[float]] = defaultdict(list)
    for report in reports:
        for case in ET.parse(report).iter("testcase"):
            file, classes = file_of(case.get("classname", ""))
            if file and case.find("skipped") is None:
                name = "::".join([file, *classes, case.get("name", "").partition("[")[0]])
                functions[file, name].append(float(case.get("time", 0)))
    means: dict[str, float] = {}
    others: dict[str, list[float]] = defaultdict(list)
    for (file, name), seconds in functions.items():
        if statistics.mean(seconds) >= SLOW:
            means[name] = statistics.mean(seconds)
        else:
            others[file] += seconds
    means |= {file: statistics.mean(seconds) for file, seconds in others.items()}
    return {name: round(mean, 2) for name, mean in means.items()}


def file_of(classname: str) -> tuple[str, list[str]]:
    """Return path and classes of ``tests.rank.test_files.TestX``; the path is empty if unknown."""
    parts = classname.split(".")
    for end in range(len(parts), 0, -1):
        path = "/".join(parts[:end]) + ".py"
        if (REPOSITORY / path).is_file():
            return path, parts[end:]
    return "", []


if __name__ == "__main__":
    path = REPOSITORY / "tests" / "durations.json"
    durations = json.loads(path.read_text()) | mean_durations(map(Path, sys.argv[1:]))
    kept = {
        name: each
        for name, each in durations.items()
        if (REPOSITORY / name.partition("::")[0]).is_file()
    }
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
