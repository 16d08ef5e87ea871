"""How long each device computes during passes of a model, and how long the passes take."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Mark = torch.Event | float
"""A point in time: of a GPU's stream, or of ``time.perf_counter``."""


@dataclass(frozen=True)
class Span:
    """Time between two marks on one device.

    Attributes:
        device: index of the device; None for a whole pass.
        start, end: the marks.
    """

    device: int | None
    start: Mark
    end: Mark

    def seconds(self, wait: bool) -> float | None:
        """Return its length; None if a GPU has not reached its end, unless ``wait``."""
        if isinstance(self.start, float):
            assert isinstance(self.end, float)
            return self.end - self.start
        assert isinstance(self.end, torch.Event)
        if wait:
            self.end.synchronize()
        elif not self.end.query():
            return None
        milliseconds: float = self.start.elapsed_time(self.end)
        return milliseconds / 1e3


class BusyTimes:
    """The time that each device computes, and the time of all passes.

    On GPUs it is measured by events, which do not make the host wait.

    Attributes:
        busy: seconds of each device.
        total: seconds of all passes.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        """Begin at zero, for ``devices``."""
        self.devices = list(devices)
        self.busy = [0.0] * len(self.devices)
        self.total = 0.0
        self._pending: deque[Span] = deque()

    def mark(self, device: torch.device) -> Mark:
        """Return the point in time that ``device`` reaches when its work so far is done."""
        if device.type == "cpu":
            return time.perf_counter()
        event = torch.Event(device, enable_timing=True)
        event.record(torch.accelerator.current_stream(device))
        return event

    def add_call(self, device: torch.device, start: Mark) -> None:
        """Add the time since ``start`` to that of ``device``, if it is one of these devices."""
        if device in self.devices:
            self._pending.append(Span(self.devices.index(device), start, self.mark(device)))

    def add_pass(self, device: torch.device, start: Mark) -> None:
        """Add the time since ``start``, on ``device``, to that of all passes."""
        self._pending.append(Span(None, start, self.mark(device)))
        self._count(wait=False)

    def _count(self, wait: bool) -> None:
        """Add up the spans that have ended."""
        while self._pending and (seconds := self._pending[0].seconds(wait)) is not None:
            device = self._pending.popleft().device
            if device is None:
                self.total += seconds
            else:
                self.busy[device] += seconds

    def shares(self) -> list[float]:
        """Return the share of the time that each device was busy; empty if nothing has run."""
        self._count(wait=True)
        return [busy / self.total for busy in self.busy] if self.total else []
