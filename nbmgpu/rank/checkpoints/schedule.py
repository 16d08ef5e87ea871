"""When checkpoints are due: after an interval, without pending gradients, on all ranks alike."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nbmgpu.options.checkpoint_options import CheckpointInterval

from .agreement import IterationAgreement

if TYPE_CHECKING:
    from nbmgpu.rank.progress import TrainingProgress


class CheckpointSchedule:
    """Tells at each iteration of a loop whether a checkpoint is due."""

    def __init__(
        self,
        interval: CheckpointInterval | None,
        progress: TrainingProgress,
        agreement: IterationAgreement,
        asks: bool,
    ) -> None:
        """Count from now on.

        Args:
            interval: between two checkpoints; None for no checkpoints.
            progress: counts steps, alike on all ranks.
            agreement: lets ranks agree on an iteration where the interval is a time.
            asks: whether this rank measures that time.
        """
        self.interval = interval
        self._progress = progress
        self._agreement = agreement
        self._asks = asks
        self._iterations = 0
        self._last_step = 0
        self._last_time = time.monotonic()

    def restart(self) -> None:
        """Count from now on: a checkpoint is written, or read."""
        self._agreement.done()
        self._last_step, self._last_time = self._progress.trained_step, time.monotonic()

    def is_near(self) -> bool:
        """Return whether a checkpoint may be due in the next iteration."""
        if self.interval is None or self.interval.unit == "epoch":
            return self.interval is not None
        if self._agreement.is_pending:
            return True
        next_step = self._progress.trained_step + 2
        return self.interval.unit == "steps" and next_step - self._last_step >= self.interval.number

    def is_due(self, ends_epoch: bool) -> bool:
        """Return whether a checkpoint is written now; ask once in each iteration of any loop.

        Args:
            ends_epoch: whether a loop has ended that had trained.
        """
        progress, interval = self._progress, self.interval
        self._iterations += 1
        if interval is None:
            return False
        new = progress.trained_step > self._last_step and progress.has_no_pending_gradients
        is_asked_for = self._agreement.is_due(self._iterations)
        if not new or is_asked_for:
            return new
        if interval.unit == "epoch":
            return ends_epoch
        if interval.unit == "steps":
            return progress.trained_step - self._last_step >= interval.number
        if self._asks and time.monotonic() - self._last_time >= interval.number:
            self._agreement.request()
        return False
