"""Measures the time of a step, the rank's own part of it, and its communication."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from nbmgpu.strategies.communication import counter


class StepCost(NamedTuple):
    """What a step costs on average; zeros without a step.

    Attributes:
        step_time: seconds.
        own_time: the rank's own part of them, without waiting for others.
        sent: bytes that the rank sent.
        collectives: their number.
    """

    step_time: float = 0.0
    own_time: float = 0.0
    sent: float = 0.0
    collectives: float = 0.0


class StepTimer:
    """Measures steps, and the time until the rank waits for others in a backward pass.

    Attributes:
        step: the number of the last step.
        own_seconds: total seconds from the end of a backward pass to the beginning of the next.
        ended_at: when the last backward pass ended, on the monotonic clock.
        sent: bytes that the rank had sent by then.
        collectives: those that it had called by then.
    """

    def __init__(self) -> None:
        """Start before the first backward pass."""
        self.begin_run()

    def begin_run(self) -> None:
        """Start before the first backward pass of a cell."""
        self.step = 0
        self.own_seconds = 0.0
        self.ended_at = 0.0
        self.sent = self.collectives = 0

    def begin_backward(self) -> None:
        """Record that a backward pass begins, in which ranks wait for each other."""
        if self.ended_at:
            self.own_seconds += time.monotonic() - self.ended_at

    def end_backward(self, step: int) -> None:
        """Record that the backward pass of ``step`` has ended."""
        self.step, self.ended_at = step, time.monotonic()
        self.sent, self.collectives = counter.sent, counter.collectives


class StepTimerWindow:
    """Averages a ``StepTimer`` since the last call."""

    def __init__(self) -> None:
        """Start without an earlier reading."""
        self._before = (0, 0.0, 0.0, 0, 0)

    def take(self, timer: StepTimer) -> StepCost:
        """Return what a step has cost since the last call."""
        now = (timer.step, timer.ended_at, timer.own_seconds, timer.sent, timer.collectives)
        before = self._before
        steps = timer.step - before[0]
        if steps <= 0:
            return StepCost()
        self._before = now
        if not before[0]:
            return StepCost()  # the first step includes the startup
        return StepCost(*((b - a) / steps for a, b in zip(before[1:], now[1:], strict=True)))


def tokens_in(batch: object) -> int:
    """Return the number of tokens in a batch of text, 0 if it is unknown."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return int(ids.numel()) if getattr(ids, "ndim", 0) == 2 else 0  # type: ignore[union-attr]
