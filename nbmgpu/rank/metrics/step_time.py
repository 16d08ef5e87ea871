"""How fast a rank goes: the time of a step, its own part of it, and the tokens in a batch."""

from __future__ import annotations

import time
from collections.abc import Mapping


class StepTimer:
    """How long steps take, and how long until the rank meets the others in a backward pass."""

    def __init__(self) -> None:
        """Begin before the first backward pass."""
        self.step = 0
        self.own = 0.0
        self.at = 0.0

    def begin_backward(self) -> None:
        """A backward pass begins: ranks wait for one another now."""
        if self.at:
            self.own += time.monotonic() - self.at

    def end_backward(self, step: int) -> None:
        """The backward pass of ``step`` is over."""
        self.step, self.at = step, time.monotonic()


class StepTimerWindow:
    """What a ``StepTimer`` did between two looks at it."""

    def __init__(self) -> None:
        """Have nothing to compare with yet."""
        self._before = (0, 0.0, 0.0)

    def take(self, pace: StepTimer) -> tuple[float, float]:
        """Return the seconds per step, and the rank's own of them; zeros without a step."""
        now = (pace.step, pace.at, pace.own)
        (before, began, own), steps = self._before, pace.step - self._before[0]
        if steps <= 0:
            return 0.0, 0.0
        self._before = now
        if not before:
            return 0.0, 0.0  # the first step had the start in it
        return (now[1] - began) / steps, (now[2] - own) / steps


def tokens_in(batch: object) -> int:
    """Return how many tokens a batch of text has, 0 where that cannot be known."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    return int(ids.numel()) if getattr(ids, "ndim", 0) == 2 else 0  # type: ignore[union-attr]
