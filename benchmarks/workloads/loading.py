"""How long ``%load_ext nbmgpu`` keeps a fresh kernel busy."""

from __future__ import annotations

from benchmarks.measure import Figure, Result, kernel


def measure(rounds: int) -> list[Result]:
    """Measure ``%load_ext`` in fresh kernels."""
    results: list[Result] = []
    for _ in range(rounds):
        with kernel() as fresh:
            fresh.run("1")  # the first cell of a kernel takes longer
            cell = fresh.run("%load_ext nbmgpu")
            results.append(Figure("%load_ext", "nbmgpu", cell.replied - cell.sent))
    return results
