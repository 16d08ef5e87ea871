"""The losses of the current step, shared by backward passes and Trainer integrations."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class LossState:
    """State of the losses of the current step.

    Attributes:
        is_sum: whether the last loss was a sum over samples, not a mean.
        are_recorded: whether losses are recorded as metrics; a Trainer records its own.
        global_counts: counts over the global batch, the same on all ranks, that a Trainer divides
            its losses by.
        returned: losses that a Lightning ``training_step`` has returned, by name; no variable of
            the user's code refers to them.
        reduced: losses of this batch that have the value of the global batch since their
            backward pass.
    """

    def __init__(self) -> None:
        """Begin without a loss."""
        self.is_sum = False
        self.are_recorded = True
        self.global_counts: list[Tensor] = []
        self.returned: dict[str, Tensor] = {}
        self.reduced: list[weakref.ref[Tensor]] = []

    def take_returned(self) -> dict[str, Tensor]:
        """Return the losses of ``returned``, and forget them."""
        taken, self.returned = self.returned, {}
        return taken

    def is_reduced(self, value: Tensor) -> bool:
        """Return whether ``value`` has the value of the global batch already."""
        return any(loss() is value for loss in self.reduced)
