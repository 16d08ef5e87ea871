"""Selects the tests of the matrix that CI runs; see ``tests/conftest.py``."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import pytest
from _pytest.mark import ParameterSet
from durations import duration


def sampled(
    cases: Iterable[tuple[object, ...]],
    every: int,
    *paths: str,
    ids: Iterable[str] | None = None,
) -> list[ParameterSet]:
    """Return test parameters: ``make test`` runs each ``every``-th of them, the matrix the others.

    Args:
        cases: the arguments of one test each.
        every: one in how many cases is not marked ``matrix``.
        paths: what the tests exercise, for the mark.
        ids: one for each test; by default it consists of the arguments.
    """
    mark = pytest.mark.matrix(*paths)
    cases = list(cases)
    named = ids or (": ".join(map(str, case)) for case in cases)
    return [
        pytest.param(*case, id=name, marks=[] if number % every == 0 else mark)
        for number, (case, name) in enumerate(zip(cases, named, strict=True))
    ]


def select(
    items: Sequence[pytest.Item], changed: Sequence[str], day: int, seconds: float
) -> list[pytest.Item]:
    """Return the tests of the matrix to run on a ``day``, in ``seconds`` of all processes."""
    mixed = sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode()))
    part = min(seconds / (sum(map(duration, items)) or 1.0), 1.0)
    first = int(day * part * len(mixed)) % max(len(mixed), 1)
    rotated = [*mixed[first:], *mixed[:first]]
    chosen = []
    for item in sorted(rotated, key=lambda item: not exercises(item, changed)):  # stable
        seconds -= duration(item)
        if seconds < 0:
            break
        chosen.append(item)
    return chosen


def exercises(item: pytest.Item, changed: Sequence[str]) -> bool:
    """Return whether a test exercises one of the ``changed`` paths, or is in a changed file."""
    own = item.nodeid.partition("::")[0]
    paths = [path for mark in item.iter_markers("matrix") for path in mark.args]
    return any(name == own or name.startswith(tuple(paths)) for name in changed)
