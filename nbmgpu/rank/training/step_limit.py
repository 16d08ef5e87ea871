"""``--steps N``: the cell ends after N optimizer steps, on all ranks after the same one.

Ranks walk in step, so each may count for itself.  The cell is not torn out of its last step:
what the loop does after it (schedulers, prints, lists) is done, and the cell ends where it
would begin another one, which is where it asks a training loader for the next batch, or
begins a backward pass on none.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import torch

from .optimizer_registry import training

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from nbmgpu.rank.session import Session

ENDED = "The cell was ended after {steps}, as --steps {limit} asks."
SHORT = "The cell took {steps} and ended by itself: --steps {limit} had nothing to end."


class BudgetSpentError(BaseException):
    """Ends a cell that has taken its steps; like an interrupt, it is not the cell's to catch."""


class Budget:
    """The optimizer steps that a cell may take, and those that it has taken.

    Steps of several optimizers on the same batch, as of a generator and its critic, are one.
    """

    def __init__(self, limit: int | None) -> None:
        """Allow ``limit`` steps; without one, any number."""
        self.limit = limit
        self.taken = 0
        self.batch = 0
        self.spent = False
        self._stepped: list[Optimizer] = []

    @property
    def on(self) -> bool:
        """Whether steps are counted at all."""
        return self.limit is not None

    def note(self, optimizer: Optimizer, session: Session) -> bool:
        """Count a step of ``optimizer``; return whether it is the first on its batch."""
        moved = session.share is not None and session.step != self.batch
        again = any(other is optimizer for other in self._stepped)
        self.batch = session.step
        if self._stepped and not again and not moved:
            self._stepped.append(optimizer)
            return False
        self._stepped = [optimizer]
        self.taken += 1
        return True

    def watched(self, batches: Iterator[Any], session: Session) -> Iterator[Any]:
        """Hand ``batches`` on, and end the cell where a training loop wants one too many."""
        try:
            for batch in batches:
                yield batch
                # Else it is an evaluation, which goes on to its end.
                if torch.is_grad_enabled() and training(session.units):
                    self._end_if_spent()
        finally:
            if isinstance(batches, Generator):
                batches.close()  # the pass is over now, and not when somebody forgets it

    def before_backward(self, session: Session) -> None:
        """End the cell that goes on without asking a loader.

        Raises:
            BudgetSpentError: all steps are taken, and this pass is not of the last one's batch.
        """
        if session.share is None or session.step != self.batch:
            self._end_if_spent()

    def _end_if_spent(self) -> None:
        if self.limit is not None and self.taken >= self.limit:
            self.spent = True
            raise BudgetSpentError

    @property
    def words(self) -> str:
        """How the cell ended."""
        steps = f"{self.taken} optimizer step" + ("" if self.taken == 1 else "s")
        return (ENDED if self.spent else SHORT).format(steps=steps, limit=self.limit)
