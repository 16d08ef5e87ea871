"""Selects the tests of the matrix that CI runs; see ``tests/conftest.py``."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest
from _pytest.mark import ParameterSet
from durations import duration, file_of


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


FUNCTION_BUDGET = 6.0
"""Seconds that the cases of one function take in ``make test``, unless one takes longer alone."""


FILE_BUDGET = 12.0
"""Seconds that the tests of one file take in ``make test``, unless its quickest takes longer."""


def beyond_budget(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that ``make test`` leaves out.

    Every function keeps some cases, spread evenly, and every file its quickest tests.
    """
    rest = [item for item in items if not any(item.iter_markers("matrix"))]
    cases = set(_cases_beyond_budget(rest))
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in rest:
        if item not in cases:
            files[file_of(item)].append(item)
    slow = []
    for tests in files.values():
        quickest, *others = sorted(tests, key=duration)  # stable
        seconds = FILE_BUDGET - duration(quickest)
        for item in others:
            seconds -= duration(item)
            slow += [item] if seconds < 0 else []
    return [*cases, *slow]


def matrix_mark(item: pytest.Item) -> pytest.MarkDecorator:
    """Return the mark of a test that ``make test`` leaves out.

    A test in ``tests/kernel`` exercises ``nbmgpu/kernel``.
    """
    package = file_of(item).removeprefix("tests/").partition("/")[0]
    return pytest.mark.matrix(f"nbmgpu/{package}/")


def _cases_beyond_budget(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    left_out = []
    for cases in functions.values():
        most = max(int(FUNCTION_BUDGET / max(duration(cases[0]), 0.01)), 1)
        kept = {at * len(cases) // most for at in range(most)}
        left_out += [case for at, case in enumerate(cases) if most < len(cases) and at not in kept]
    return left_out


CHANGED_SHARE = 0.5
"""Most of the time that tests of changed paths take, so that the others have their turn, too."""

GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, spread evenly (https://en.wikipedia.org/wiki/Low-discrepancy_sequence)."""


def select(
    items: Sequence[pytest.Item], changed: Sequence[str], number: int, seconds: float
) -> list[pytest.Item]:
    """Return the tests of the matrix to run in ``seconds`` of all processes.

    Args:
        items: all tests of the matrix.
        changed: paths of files that have changed.
        number: of the commit; each begins at another position.
        seconds: the sum of their durations.
    """
    mixed = sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode()))
    first = int(number * GOLDEN_RATIO % 1 * len(mixed))
    rotated = [*mixed[first:], *mixed[:first]]
    of_changed = _fitting((i for i in rotated if exercises(i, changed)), seconds * CHANGED_SHARE)
    taken = set(of_changed)
    seconds -= sum(map(duration, of_changed))
    return of_changed + _fitting((item for item in rotated if item not in taken), seconds)


def _fitting(items: Iterable[pytest.Item], seconds: float) -> list[pytest.Item]:
    """Return the first of ``items`` that take no more than ``seconds``."""
    chosen = []
    for item in items:
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
