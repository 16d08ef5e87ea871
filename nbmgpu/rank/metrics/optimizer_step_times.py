"""Measures time and communication from the end of each optimizer step to the end of the next."""

from __future__ import annotations

import time
from itertools import pairwise

import torch

from nbmgpu.environment.accelerator import is_accelerator
from nbmgpu.strategies.communication import counter

MAX_STEPS = 10_000
"""Number of steps to time; later ones take as long."""


class OptimizerStepTimer:
    """Records the ends of steps; on a GPU by events in its stream, without synchronization."""

    def __init__(self, device: str) -> None:
        """Time steps on ``device``."""
        self._device = device
        self._on_gpu = is_accelerator(device)
        self._times: list[float] = []
        self._events: list[torch.Event] = []
        self._samples: list[int] = []
        self._sent: list[int] = []
        self._collectives: list[int] = []

    def mark(self, samples: int) -> None:
        """Record the end of a step; ``samples`` is the number of samples used so far."""
        if len(self._samples) > MAX_STEPS:
            return
        self._samples.append(samples)
        self._sent.append(counter.sent)
        self._collectives.append(counter.collectives)
        if not self._on_gpu:
            self._times.append(time.perf_counter())
            return
        event = torch.Event(self._device, enable_timing=True)
        event.record()
        self._events.append(event)

    def seconds(self) -> list[float]:
        """Return the time of every step but the first, which has no earlier end."""
        if self._events:
            self._events[-1].synchronize()
        on_gpu = [a.elapsed_time(b) / 1000 for a, b in pairwise(self._events)]
        return on_gpu or [b - a for a, b in pairwise(self._times)]

    def samples(self) -> list[int]:
        """Return the samples of the same steps, over all ranks; zeros if they are unknown."""
        return [b - a for a, b in pairwise(self._samples)]

    def sent(self) -> list[int]:
        """Return the bytes that this rank sent in the same steps."""
        return [b - a for a, b in pairwise(self._sent)]

    def collectives(self) -> list[int]:
        """Return the number of collectives in the same steps."""
        return [b - a for a, b in pairwise(self._collectives)]
