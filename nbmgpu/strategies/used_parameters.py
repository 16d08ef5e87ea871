"""The parameters that a backward pass uses, on this rank and on any rank."""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter, is_
from typing import TYPE_CHECKING

from nbmgpu.errors import StrategyError, format_message

if TYPE_CHECKING:
    from torch import Tensor, nn

GRAD = attrgetter("grad")


class UsedParameters:
    """Records which parameters of a unit get a gradient in a backward pass.

    Hooks record gradients as they arrive.  Without hooks, gradients are compared with those before
    the pass.  A hook on each parameter would detect the same, and takes a tenth of a small model's
    step.

    Attributes:
        parameters: the parameters that are trained; their flags have the same order.
        ids: ids of those that got a gradient in this pass, on this rank.
        reached: whether any hook ran, even if a hook of the cell has removed the gradient.
        static_ids: ids that the first pass used on any rank, under ``--static-graph``.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        """Record the gradients of ``parameters``."""
        self.parameters = parameters
        self.ids: set[int] = set()
        self.reached = False
        self.static_ids: set[int] | None = None
        self._flag_index = {id(p): i for i, p in enumerate(parameters)}
        self._before: list[tuple[Tensor | None, int]] | None = None

    def clear(self) -> None:
        """Prepare for a new pass."""
        self.ids.clear()
        self.reached = False

    def snapshot(self) -> None:
        """Record the gradients before a pass without hooks: an empty list if there are none."""
        grads = list(map(GRAD, self.parameters))
        if all(map(is_, grads, repeat(None))):  # as a rule; a loop would cost a microsecond each
            self._before = []
        else:
            self._before = [(grad, 0 if grad is None else grad._version) for grad in grads]

    def compare(self) -> None:
        """Find the gradients that are new or were added to since ``snapshot``."""
        before, self._before = self._before, None
        if before is None:
            return
        grads = list(map(GRAD, self.parameters))
        if not before and not any(map(is_, grads, repeat(None))):
            self.ids.update(self._flag_index)
            return
        before = before or [(None, 0)] * len(grads)
        for parameter, (old, version) in zip(self.parameters, before, strict=True):
            grad = parameter.grad
            if grad is not None and (grad is not old or grad._version > version):
                self.ids.add(id(parameter))

    def flags(self) -> list[int] | None:
        """Return the indices of this rank's flags; None for all."""
        if len(self.ids) == len(self.parameters):
            return None
        return [self._flag_index[key] for key in self.ids]

    def on_any_rank(self, flags: Tensor) -> set[int]:
        """Return the ids of the parameters that any rank used, from the sum of all flags.

        Synchronizes with the device, unless this rank used all parameters.
        """
        if len(self.ids) == len(self.parameters):
            return self.ids
        return self._read(flags)

    def static(self, flags: Tensor) -> set[int]:
        """Return the ids of the parameters that every pass uses.

        Raises:
            StrategyError: this pass, or another rank, used other parameters.
        """
        first = self.static_ids is None
        if self.static_ids is None:
            self.static_ids = self._read(flags)
        if self.ids != self.static_ids:
            other = "another rank" if first else "the first one"
            what = f"--static-graph: a backward pass used other parameters than {other}"
            raise StrategyError(format_message(what, instead="%%mgpu without --static-graph"))
        return self.static_ids

    def _read(self, flags: Tensor) -> set[int]:
        values = flags.tolist()
        return {key for key, index in self._flag_index.items() if values[index] > 0}
