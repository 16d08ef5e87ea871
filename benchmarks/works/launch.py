"""From Shift-Enter to the first all_reduce on two ranks, and to the answer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.measure import Figure, Result, interleaved, kernel, kernels
from benchmarks.rivals import RIVALS, STAMP, Rival

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


def _warm(rounds: int, work: str, before: str) -> list[Result]:
    with kernels(RIVALS, before) as running:

        def once(rival: Rival) -> Sequence[Figure]:
            ran = running[rival].run(rival.run(WORK))
            joined = max(running[rival].stamps(2)) - ran.sent
            return [
                Figure(f"{work}: first all_reduce", rival.name, joined),
                Figure(f"{work}: whole cell", rival.name, ran.answered - ran.sent),
            ]

        time.sleep(10)  # what a tool prepares in the background, it has time for
        first = f"{work}: first all_reduce"
        interleaved(1, RIVALS, first, once)  # everybody's first run is not warm
        time.sleep(5)
        return interleaved(rounds, RIVALS, first, once)


def _cold(rounds: int) -> list[Result]:
    work = "cold: a fresh kernel's first run: first all_reduce"

    def once(rival: Rival) -> Sequence[Figure]:
        with kernel() as fresh:
            begun = time.time()
            if rival.setup:
                fresh.run(rival.setup)
            fresh.run(rival.run(WORK))
            return [Figure(work, rival.name, max(fresh.stamps(2)) - begun)]

    return interleaved(rounds, RIVALS, work, once)
