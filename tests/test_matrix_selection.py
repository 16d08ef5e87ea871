"""The part of the matrix that CI runs: what has changed first, then a part that moves every day."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from matrix_selection import DURATIONS, UNKNOWN, select


@dataclass(frozen=True, eq=False)
class Item:
    """What the selection reads of a ``pytest.Item``."""

    nodeid: str
    marks: tuple[pytest.Mark, ...] = field(default=())

    def iter_markers(self, name: str) -> tuple[pytest.Mark, ...]:
        return tuple(mark for mark in self.marks if mark.name == name)


def of(file: str, count: int, *paths: str) -> list[Item]:
    mark = pytest.mark.matrix(*paths).mark
    return [Item(f"tests/{file}.py::test[{n}]", (mark,)) for n in range(count)]


FSDP = of("test_of_fsdp", 40, "nbmgpu/strategies/fsdp")
OTHERS = of("test_of_others", 200, "nbmgpu/server")


def selected(changed: list[str], day: int = 0, tests: int = 50) -> list[Item]:
    return select([*FSDP, *OTHERS], changed, day, tests * UNKNOWN)


def test_as_many_tests_are_taken_as_fit() -> None:
    assert len(selected([], tests=50)) == 50
    assert len(selected([], tests=1000)) == 240


@pytest.mark.parametrize("changed", ["nbmgpu/strategies/fsdp/wrapper.py", "tests/test_of_fsdp.py"])
def test_what_has_changed_comes_first(changed: str) -> None:
    assert set(FSDP) < set(selected([changed]))


def test_a_few_days_run_all_of_the_matrix() -> None:
    days = [set(selected([], day)) for day in range(9)]
    assert days[0] != days[1]
    assert set.union(*days) == {*FSDP, *OTHERS}


def test_durations_are_recorded_of_files_that_exist() -> None:
    recorded = json.loads(DURATIONS.read_text())
    assert recorded
    assert [name for name in recorded if not (Path(__file__).parents[1] / name).is_file()] == []
