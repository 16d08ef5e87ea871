"""The order of tests, and those of the matrix that CI runs: changed paths and, in turn, all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from durations import RECORDED, UNKNOWN, longest_files_first
from matrix_selection import beyond_budget, exercises, matrix_mark, select


@dataclass(frozen=True, eq=False)
class Item:
    """The attributes of ``pytest.Item`` that the selection uses."""

    nodeid: str
    marks: tuple[pytest.Mark, ...] = field(default=())

    def iter_markers(self, name: str) -> tuple[pytest.Mark, ...]:
        return tuple(mark for mark in self.marks if mark.name == name)


def items_of(file: str, count: int, *paths: str) -> list[Item]:
    mark = pytest.mark.matrix(*paths).mark
    return [Item(f"tests/{file}.py::test[{n}]", (mark,)) for n in range(count)]


FSDP = items_of("test_fsdp", 40, "nbmgpu/strategies/fsdp")
OTHERS = items_of("test_others", 200, "nbmgpu/server")


def selected(changed: list[str], number: int = 0, tests: int = 50) -> list[Item]:
    return select([*FSDP, *OTHERS], changed, number, tests * UNKNOWN)


def test_the_time_limit_is_filled() -> None:
    assert len(selected([], tests=50)) == 50
    assert len(selected([], tests=1000)) == 240


@pytest.mark.parametrize("changed", ["nbmgpu/strategies/fsdp/wrapper.py", "tests/test_fsdp.py"])
def test_tests_of_changed_paths_are_selected_first(changed: str) -> None:
    assert set(FSDP) < set(selected([changed], tests=80))


@pytest.mark.parametrize("changed", [[], ["tests/test_fsdp.py"], ["nbmgpu/server/app.py"]])
def test_some_commits_cover_the_matrix(changed: list[str]) -> None:
    runs = [set(selected(changed, number)) for number in range(851, 871)]
    assert runs[0] != runs[1]
    assert set.union(*runs) == {*FSDP, *OTHERS}


def test_a_function_with_many_slow_cases_keeps_a_few() -> None:
    slow = [Item(f"tests/unknown.py::test[{n}]") for n in range(10)]
    other = [Item("tests/unknown.py::test_other")]
    left_out = beyond_budget([*slow, *other, *FSDP])
    assert set(left_out) == {*slow} - {slow[0]}  # of 5 s each, one fits
    assert beyond_budget(slow[:1]) == []


def test_a_file_with_many_slow_functions_keeps_a_few() -> None:
    slow = [Item(f"tests/unknown.py::test_{n}") for n in range(10)]
    assert beyond_budget(slow) == slow[2:]  # of 5 s each, two fit
    mark = matrix_mark(Item("tests/kernel/test_leaks.py::test"))
    marked = Item("tests/kernel/test_leaks.py::test", (mark.mark,))
    assert exercises(marked, ["nbmgpu/kernel/execution.py"])
    assert not exercises(marked, ["nbmgpu/kernels.py"])


def test_files_that_take_longest_come_first() -> None:
    alternating = [item for pair in zip(FSDP, OTHERS, strict=False) for item in pair]
    alternating += OTHERS[len(FSDP) :]
    assert longest_files_first(alternating) == [*OTHERS, *FSDP]


def test_recorded_durations_are_of_existing_files() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert recorded
    files = {name.partition("::")[0] for name in recorded}
    assert [name for name in files if not (Path(__file__).parents[1] / name).is_file()] == []


SLOW_MATRIX = """
import time
import pytest

@pytest.mark.matrix
@pytest.mark.parametrize("number", range(60))
def test_of_the_matrix(number):
    time.sleep(0.1)
"""


def test_no_test_of_the_matrix_starts_after_its_minutes(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(SLOW_MATRIX)
    tests = Path(__file__).parent
    plugins = ["-p", "conftest", "-p", "no:cacheprovider"]
    options = ["-c", tests.parent / "pyproject.toml", "--matrix-workers", "1000"]
    output = subprocess.run(
        [sys.executable, "-m", "pytest", tmp_path, *plugins, *options, "--matrix-minutes=0.05"],
        env=os.environ | {"PYTHONPATH": str(tests)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    skipped = re.search(r"(\d+) skipped in", output)
    assert skipped, output
    assert int(skipped[1]) >= 30
