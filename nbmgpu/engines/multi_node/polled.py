"""The state of a job that a scheduler tells, which is not asked for it at every poll of a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from nbmgpu.errors import LaunchError

FRESH, FRESH_LATER, SOON = 1.0, 10.0, 60.0
"""Seconds between two questions to the scheduler: in the first minute, and later."""

StateT = TypeVar("StateT")


class Polled(Generic[StateT]):
    """The last state that a scheduler has told.

    Attributes:
        last: what it was.
    """

    def __init__(self, unknown: StateT) -> None:
        """Begin with the state ``unknown``."""
        self.last = unknown
        self._first = self._asked = 0.0

    def state(self, ask: Callable[[], StateT], now: bool = False) -> StateT:
        """Return the state, which may be some seconds old.

        Args:
            ask: asks the scheduler; where that raises a LaunchError, the last state holds.
            now: whether to ask in any case.
        """
        moment = time.monotonic()
        self._first = self._first or moment
        fresh = FRESH if moment - self._first < SOON else FRESH_LATER
        if now or not self._asked or moment - self._asked > fresh:
            self._asked = moment
            with suppress(LaunchError):  # the scheduler may be down for a while
                self.last = ask()
        return self.last
