"""Names whose values after the cell are of no interest."""

from __future__ import annotations

import pytest

from nbmgpu.cell.loop_targets import loop_targets


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("for x, (y, *z) in loader: loss = f(x)", "x y z"),
        ("for i, batch in enumerate(loader):\n    batch = g(batch)", "i"),
        ("for x in a: pass\nx = 1", ""),
        ("def f():\n    for x in a: pass", "x"),
        ("for model.weight in a: pass\nfor d[k] in b: pass", ""),
        ("async def f():\n    async for x in a: pass", "x"),
        ("total += 1", ""),
    ],
)
def test_names_that_only_loops_bind(code: str, names: str) -> None:
    assert loop_targets(code) == set(names.split())
