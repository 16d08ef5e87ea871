"""The order of the tests, and options that select as many tests of the matrix as fit in CI.

Test processes take one file after the other, so that fixtures of modules are set up once.  Files
that take long come first: a process that had one of them left would end last.

Tests marked ``matrix`` repeat a check for every combination: each idiom under each strategy, each
notebook.  So are the slowest tests of each file that takes longer than some seconds in all, and
some cases of each such function, spread evenly.  ``make test`` leaves them out, ``make test-all``
runs them all, and CI runs a part::

    pytest tests -m matrix --matrix-minutes=25 --matrix-number=851 --matrix-changed=FILE

Half of the minutes are for tests of changed paths: ``@pytest.mark.matrix("nbmgpu/rank")`` names the
paths that a test exercises, and ``FILE`` lists changed paths, one per line.  The others follow in a
fixed order that starts at a different position for each number, that of commits, so that some runs
cover all of them.  Tests are selected until their recorded durations (``tests/durations.json``,
seconds per test) fill the minutes.  Where they take longer than recorded, those left after these
minutes are skipped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from durations import longest_files_first
from matrix_selection import beyond_budget, matrix_mark, select
from staged import Stage

DEADLINE = pytest.StashKey[float]()
"""When no test of the matrix starts any more, by ``time.monotonic()``."""


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stage]:
    """Make runs whose launcher and ranks are played by the test, in a folder of their own."""
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    with Stage() as stage:
        yield stage


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("nbmgpu")
    group.addoption("--matrix-minutes", type=float, help="run as much of the matrix as fits")
    group.addoption("--matrix-workers", type=int, default=2, help="processes that share the work")
    group.addoption("--matrix-number", type=int, default=0, help="where to begin")
    group.addoption("--matrix-changed", type=Path, help="a file with changed paths, one per line")


def pytest_configure(config: pytest.Config) -> None:
    minutes = config.getoption("--matrix-minutes")
    config.stash[DEADLINE] = math.inf if minutes is None else time.monotonic() + minutes * 60


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("matrix") and time.monotonic() > item.config.stash[DEADLINE]:
        pytest.skip("--matrix-minutes are over")


@pytest.hookimpl(tryfirst=True)  # before `-m` deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in beyond_budget(items):
        item.add_marker(matrix_mark(item))
    if config.getoption("--matrix-minutes") is not None:
        _select_matrix(config, items)
    items[:] = longest_files_first(items)


def _select_matrix(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = config.getoption("--matrix-changed")
    changed = listed.read_text().split() if listed else []
    number = config.getoption("--matrix-number")
    seconds = config.getoption("--matrix-minutes") * 60 * config.getoption("--matrix-workers")
    matrix = [item for item in items if item.get_closest_marker("matrix")]
    # Tests that measure time are left out: here, other tests run beside them.
    together = [item for item in matrix if not item.get_closest_marker("alone")]
    chosen = set(select(together, changed, number, seconds))
    config.hook.pytest_deselected(items=[item for item in matrix if item not in chosen])
    items[:] = [item for item in items if item not in matrix or item in chosen]
