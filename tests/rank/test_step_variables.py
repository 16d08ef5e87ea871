"""Variables of a cell that every step of a training loop binds, and nothing else does."""

from __future__ import annotations

import linecache
import sys
from types import FrameType

import pytest

from nbmgpu.rank.source_analysis.step_variables import StepVariables, step_variables

LOOP = "for x, y in loader():\n    out = x\n"


def variables(cell: str) -> StepVariables:
    """Return those of the loop whose iterator calls ``loader``."""
    found: list[StepVariables] = []

    def loader() -> list[tuple[int, int]]:
        frame: FrameType = sys._getframe(1)
        found.append(step_variables(frame))
        return [(1, 2)]

    linecache.cache["<a-cell>"] = (len(cell), None, cell.splitlines(keepends=True), "<a-cell>")
    exec(compile(cell, "<a-cell>", "exec"), {"__name__": "__main__", "loader": loader})
    return found[0]


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
    assert variables(LOOP + "    " + body).bound == {*names.split()}


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
    assert variables(LOOP + after).bound == set()


def test_names_of_functions_are_their_own() -> None:
    assert variables(LOOP + "def f():\n    out = 3\n").bound == {"out"}
    assert not variables("def f():\n    for x, y in loader():\n        out = x\nf()\n").bound


@pytest.mark.parametrize(
    ("body", "after", "names"),
    [
        ("", "print(out, x)\n", "out x"),
        ("", "def f():\n    return y, out\n", "out y"),
        ("", "", ""),
        ("a = out + 1\n", "print(a, out)\n", "a out"),
        ("with open('/dev/null'):\n        a = x\n        b = a\n", "print(a, b)\n", "a b"),
        ("print(a)\n    a = x\n", "print(a)\n", ""),
        ("a = a + 1\n", "print(a)\n", ""),
        ("a += 1\n", "print(a)\n", ""),
        ("if a:\n        pass\n    a = x\n", "print(a)\n", ""),
        ("if x:\n        a = x\n", "print(a)\n", ""),
    ],
)
def test_what_is_read_later_is_bound_in_a_step_before_it_is_read(
    body: str, after: str, names: str
) -> None:
    cell = f"a = 0\n{LOOP}    {body}" if body.startswith(("print", "a = a", "a +=", "if a")) else ""
    found = variables((cell or LOOP + (f"    {body}" if body else "")) + after)
    assert found.read_later == {*names.split()}
