"""100,000 lines and 10,000 points from each rank: nothing lost, training and kernel not slowed."""

from __future__ import annotations

import time

from benchmarks.measure import Figure, Result, kernels
from benchmarks.rivals import OURS

CELL = """%%mgpu --gpus 2 --cpu --strategy none
import time
begun = time.perf_counter()
for number in range({lines}):
    print("line", number)
printed = time.perf_counter() - begun
begun = time.perf_counter()
for number in range({points}):
    nbmgpu.log(points=number)
logged = time.perf_counter() - begun
"""

CHECK = """
import nbmgpu, json
run = nbmgpu.last_run
lost = sum(100_000 - run.log(rank).count("line ") for rank in (0, 1))
print(json.dumps([printed, logged, lost, len(run.metrics)]))
"""


def measure(rounds: int) -> list[Result]:
    """Measure a flood of lines and points."""
    import json

    results: list[Result] = []
    with kernels([OURS], "import nbmgpu") as running:
        kernel = running[OURS]
        for _ in range(rounds):
            kernel.run(CELL.format(lines=100_000, points=10_000))
            time.sleep(0.5)
            printed, logged, lost, points = json.loads(kernel.run(CHECK).text)
            results += [
                Figure("100,000 lines from each rank", "nbmgpu", printed),
                Figure("10,000 points from each rank", "nbmgpu", logged),
                Figure("lines lost", "nbmgpu", lost, ""),
                Figure("points in the run's metrics", "nbmgpu", points, ""),
            ]
    return results
