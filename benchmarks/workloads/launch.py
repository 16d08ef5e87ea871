"""From Shift-Enter to the first all_reduce on two ranks, and to the kernel's reply."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.measure import Figure, Result, interleaved, kernel, kernels
from benchmarks.tools import STAMP, TOOLS, Tool

WORK = f"""
import torch
import torch.distributed as dist
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == 2
{STAMP}
"""

TRANSFORMERS = "from transformers import AutoModelForSequenceClassification, Trainer"


def measure(rounds: int) -> list[Result]:
    """Measure launches: warm, warm with transformers in the notebook, and cold."""
    return [
        *_warm(rounds, "warm launch", "import torch"),
        *_warm(rounds, "warm launch, transformers in the notebook", TRANSFORMERS),
        *_cold(rounds),
    ]


def _warm(rounds: int, workload: str, before: str) -> list[Result]:
    with kernels(TOOLS, before) as running:

        def once(tool: Tool) -> Sequence[Figure]:
            cell = running[tool].run(tool.run(WORK))
            joined = max(running[tool].stamps(2)) - cell.sent
            return [
                Figure(f"{workload}: first all_reduce", tool.name, joined),
                Figure(f"{workload}: whole cell", tool.name, cell.replied - cell.sent),
            ]

        time.sleep(10)  # time for what tools prepare in the background
        first = f"{workload}: first all_reduce"
        interleaved(1, TOOLS, first, once)  # no first run is warm
        time.sleep(5)
        return interleaved(rounds, TOOLS, first, once)


def _cold(rounds: int) -> list[Result]:
    workload = "cold: a fresh kernel's first run: first all_reduce"

    def once(tool: Tool) -> Sequence[Figure]:
        with kernel() as fresh:
            start = time.time()
            if tool.setup:
                fresh.run(tool.setup)
            fresh.run(tool.run(WORK))
            return [Figure(workload, tool.name, max(fresh.stamps(2)) - start)]

    return interleaved(rounds, TOOLS, workload, once)
