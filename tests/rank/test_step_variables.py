"""Variables of a cell that every step of a training loop binds, and nothing else does."""

from __future__ import annotations

import linecache
import sys
from types import FrameType

import pytest

from nbmgpu.rank.source_analysis.step_variables import step_variables

LOOP = "for x, y in loader():\n    out = x\n"


def variables(cell: str) -> set[str]:
    """Return those of the loop whose iterator calls ``loader``."""
    found: list[frozenset[str]] = []

    def loader() -> list[tuple[int, int]]:
        frame: FrameType = sys._getframe(1)
        found.append(step_variables(frame))
        return [(1, 2)]

    linecache.cache["<a-cell>"] = (len(cell), None, cell.splitlines(keepends=True), "<a-cell>")
    exec(compile(cell, "<a-cell>", "exec"), {"__name__": "__main__", "loader": loader})
    return set(found[0])


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("a = b = x\n", "a b out"),
        ("(a, (b, *c)), d = (x, [y, x]), 1\n", "a b c d out"),
        ("out += 1\n    a: int = out\n", "a out"),
        ("with open('/dev/null'):\n        a = x\n", "a out"),
        ("if x:\n        a = x\n", "out"),
        ("if x:\n        out = y\n", ""),
        ("for i in range(2):\n        a = x\n", "out"),
        ("del out\n", ""),
        ("def out():\n        pass\n", ""),
    ],
)
def test_only_what_each_step_binds(body: str, names: str) -> None:
    assert variables(LOOP + "    " + body) == {*names.split()}


@pytest.mark.parametrize(
    "after",
    [
        "out = 3\n",
        "for out in range(2):\n    pass\n",
        "import math as out\n",
        "class out: pass\n",
        "def f():\n    global out\n    out = 3\n",
        "print(out := 3)\n",
        "with open('/dev/null') as out: pass\n",
        "try: pass\nexcept OSError as out: pass\n",
    ],
)
def test_what_is_bound_elsewhere_is_none(after: str) -> None:
    assert variables(LOOP + after) == set()


def test_names_of_functions_are_their_own() -> None:
    assert variables(LOOP + "def f():\n    out = 3\n") == {"out"}
    assert variables("def f():\n    for x, y in loader():\n        out = x\nf()\n") == set()
