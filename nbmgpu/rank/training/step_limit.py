"""``--steps N``: the cell ends after N optimizer steps, on all ranks after the same one.

All ranks take the same steps, so each one counts independently.  What the loop does after its last
step (schedulers, prints, lists) is completed.  The cell ends where it would begin another step:
where it asks a training loader for the next batch, or begins a backward pass without a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.progress import TrainingProgress

ENDED = "The cell was ended after {steps}, as --steps {limit} asks."
SHORT = "The cell took {steps} and ended by itself: --steps {limit} had nothing to end."


class StepLimitReachedError(BaseException):
    """Ends a cell that has taken its steps.  No Exception, so that the cell does not catch it."""


class StepLimit:
    """The optimizer steps that a cell may take, and those that it has taken.

    Steps of several optimizers on one batch, such as those of a generator and a discriminator,
    count as one.

    Attributes:
        limit: number of steps; None for any number.
        taken: number of steps so far.
        reached: whether the cell was ended.
    """

    def __init__(self, limit: int | None, progress: TrainingProgress) -> None:
        """Allow ``limit`` steps."""
        self._progress = progress
        self.begin_run(limit)

    def begin_run(self, limit: int | None) -> None:
        """Allow ``limit`` steps from now on."""
        self.limit = limit
        self.taken = 0
        self.reached = False
        self._step_of_last = 0
        self._stepped: list[Optimizer] = []

    @property
    def on(self) -> bool:
        """Whether steps are counted at all."""
        return self.limit is not None

    def count(self, optimizer: Optimizer) -> bool:
        """Count a step of ``optimizer``; return whether it is the first one on its batch."""
        progress = self._progress
        new_batch = progress.shard is not None and progress.step != self._step_of_last
        again = any(other is optimizer for other in self._stepped)
        self._step_of_last = progress.step
        if self._stepped and not again and not new_batch:
            self._stepped.append(optimizer)
            return False
        self._stepped = [optimizer]
        self.taken += 1
        return True

    def end_after_last(
        self, batches: Iterator[Any], is_training: Callable[[], bool]
    ) -> Iterator[Any]:
        """Yield ``batches``; end the cell where a loop that ``is_training`` asks for one too many.

        An evaluation continues to its end.
        """
        try:
            for batch in batches:
                yield batch
                if is_training():
                    self._end_if_reached()
        finally:
            if isinstance(batches, Generator):
                batches.close()  # ends the pass now, and not when it is garbage collected

    def before_backward(self) -> None:
        """End a cell that continues without asking a loader.

        Raises:
            StepLimitReachedError: all steps are taken, and the pass is not on the last one's batch.
        """
        if self._progress.shard is None or self._progress.step != self._step_of_last:
            self._end_if_reached()

    def _end_if_reached(self) -> None:
        if self.limit is not None and self.taken >= self.limit:
            self.reached = True
            raise StepLimitReachedError

    @property
    def summary(self) -> str:
        """How the cell ended, for a notice."""
        steps = f"{self.taken} optimizer step" + ("" if self.taken == 1 else "s")
        return (ENDED if self.reached else SHORT).format(steps=steps, limit=self.limit)
