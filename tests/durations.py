"""Recorded durations of tests, in seconds; ``tools/test_durations.py`` renews them.

A slow test function has its own mean, those of other functions are in the mean of their file.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

RECORDED = Path(__file__).with_suffix(".json")

UNKNOWN = 5.0
"""Assumed duration of a test without a recorded one."""


@functools.cache
def recorded() -> dict[str, float]:
    """Return mean durations by path, or by path and name: ``tests/test_x.py::test_y``."""
    durations: dict[str, float] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return durations


def file_of(item: pytest.Item) -> str:
    """Return the path of a test's file."""
    return item.nodeid.partition("::")[0]


def duration(item: pytest.Item) -> float:
    """Return how long a test takes."""
    function = item.nodeid.partition("[")[0]
    return recorded().get(function, recorded().get(file_of(item), UNKNOWN))


def longest_files_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Sort tests by the duration of their files; those of one file keep their order."""
    total: Counter[str] = Counter()
    for item in items:
        total[file_of(item)] += duration(item)
    return sorted(items, key=lambda item: (-total[file_of(item)], file_of(item)))
