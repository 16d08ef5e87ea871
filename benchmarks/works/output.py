"""100,000 lines and 10,000 points from each rank: nothing lost, training and kernel not slowed."""

from __future__ import annotations

import json
import time

from benchmarks.kernels import Kernel
from benchmarks.measure import Figure, Result, kernels
from benchmarks.rivals import OURS

AT_ONCE = """%%mgpu --gpus 2 --cpu --strategy none
import time
begun = time.perf_counter()
for number in range(100_000):
    print("line", number)
printed = time.perf_counter() - begun
begun = time.perf_counter()
for number in range(10_000):
    nbmgpu.log(points=number)
logged = time.perf_counter() - begun
"""

CHECK = """
import nbmgpu, json
run = nbmgpu.last_run
lost = sum(100_000 - run.log(rank).count("line ") for rank in (0, 1))
print(json.dumps([printed, logged, lost, len(run.metrics)]))
"""

STEPS = """%%mgpu --gpus 2 --cpu --strategy none
import time, torch
torch.set_num_threads(1)
a = torch.randn(900, 900)
begun = time.perf_counter()
for step in range(500):
    for _ in range(2):
        b = a @ a
    for number in range({lines}):
        print("line", number)
    for number in range({points}):
        nbmgpu.log(points=number)
took = time.perf_counter() - begun
"""
"""500 steps that only compute, with or without 100,000 lines and 10,000 points among them."""

LAST_LINES = {"logs": {"rank": -1, "first": -1, "count": 100}}


def measure(rounds: int) -> list[Result]:
    """Measure a flood of lines and points, and what it costs others."""
    results: list[Result] = []
    with kernels([OURS], "import nbmgpu") as running:
        kernel = running[OURS]
        for _ in range(rounds):
            kernel.run(AT_ONCE)
            time.sleep(0.5)
            printed, logged, lost, points = json.loads(kernel.run(CHECK).text)
            results += [
                Figure("100,000 lines from each rank", "nbmgpu", printed),
                Figure("10,000 points from each rank", "nbmgpu", logged),
                Figure("lines lost", "nbmgpu", lost, ""),
                Figure("points in the run's metrics", "nbmgpu", points, ""),
                *_in_training(kernel),
            ]
    return results


def _in_training(kernel: Kernel) -> list[Result]:
    kernel.run(STEPS.format(lines=0, points=0))
    quiet = float(kernel.run("print(took)").text)
    waits = kernel.clicks(STEPS.format(lines=200, points=20), LAST_LINES)
    loud = float(kernel.run("print(took)").text)
    return [
        Figure("500 steps with all that, against 500 silent ones", "nbmgpu", loud / quiet, "x"),
        Figure("a click meanwhile, the slowest", "nbmgpu", max(waits)),
    ]
