"""Measures the time of a step, and the rank's own part of it."""

from __future__ import annotations

import time
from collections.abc import Mapping


class StepTimer:
    """Measures steps, and the time until the rank waits for others in a backward pass.

    Attributes:
        step: the number of the last step.
        own_seconds: total seconds from the end of a backward pass to the beginning of the next.
        ended_at: when the last backward pass ended, on the monotonic clock.
    """

    def __init__(self) -> None:
        """Start before the first backward pass."""
        self.step = 0
        self.own_seconds = 0.0
        self.ended_at = 0.0

    def begin_backward(self) -> None:
        """Record that a backward pass begins, in which ranks wait for each other."""
        if self.ended_at:
            self.own_seconds += time.monotonic() - self.ended_at

    def end_backward(self, step: int) -> None:
        """Record that the backward pass of ``step`` has ended."""
        self.step, self.ended_at = step, time.monotonic()


class StepTimerWindow:
    """Averages a ``StepTimer`` since the last call."""

    def __init__(self) -> None:
        """Start without an earlier reading."""
        self._before = (0, 0.0, 0.0)

    def take(self, timer: StepTimer) -> tuple[float, float]:
        """Return seconds per step, and the rank's own part of them; zeros without a step."""
        now = (timer.step, timer.ended_at, timer.own_seconds)
        (before, at, own), steps = self._before, timer.step - self._before[0]
        if steps <= 0:
            return 0.0, 0.0
        self._before = now
        if not before:
            return 0.0, 0.0  # the first step includes the startup
        return (now[1] - at) / steps, (now[2] - own) / steps


def tokens_in(batch: object) -> int:
    """Return the number of tokens in a batch of text, 0 if it is unknown."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return int(ids.numel()) if getattr(ids, "ndim", 0) == 2 else 0  # type: ignore[union-attr]
