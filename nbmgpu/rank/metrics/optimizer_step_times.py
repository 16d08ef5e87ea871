"""How long each optimizer step takes, from the end of one to the end of the next."""

from __future__ import annotations

import time
from itertools import pairwise

import torch

MOST = 10_000
"""Steps that are timed; what comes later is as fast."""


class OptimizerStepTimer:
    """Marks the ends of steps: on a GPU in its own stream, so that nobody waits for it."""

    def __init__(self, device: str) -> None:
        """Time what happens on ``device``."""
        self._on_gpu = device.startswith("cuda")
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self._samples: list[int] = []

    def mark(self, samples: int) -> None:
        """Note that a step is over, by which so many ``samples`` have been used."""
        if len(self._samples) > MOST:
            return
        self._samples.append(samples)
        if not self._on_gpu:
            self._times.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        """Return the time of every step but the first, which has nothing to count from."""
        if self._events:
            self._events[-1].synchronize()
        on_gpu = [a.elapsed_time(b) / 1000 for a, b in pairwise(self._events)]
        return on_gpu or [b - a for a, b in pairwise(self._times)]

    def samples(self) -> list[int]:
        """Return the samples of the same steps, over all ranks; zeros where nobody knows."""
        return [b - a for a, b in pairwise(self._samples)]
