"""``ddp``: every rank holds the model, gradients are averaged during the backward pass.

The semantics are those of DistributedDataParallel (Li et al., VLDB 2020, 2006.15704): gradients are
reduced in buckets, in the reverse order of the parameters, while the rest of the backward pass
still runs.  The difference is where it hooks in: at the parameters, not at a wrapped ``forward``.
So the user's model keeps its type, and every way to reach a parameter works: ``model.forward``
called directly, several forward passes before one backward pass, parts of a model that a loss does
not use, penalties and second-order terms.

Gradients are averaged by weight.  With rank r's weight w_r, the samples behind its loss, ``.grad``
becomes sum(w_r * grad_r) / sum(w_r), the gradient of the mean over the global batch, however
unevenly it was split.  An earlier ``.grad`` that is the same on all ranks passes through unchanged,
so gradient accumulation needs no special case.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from nbmgpu.errors import StrategyError, format_message

from . import profiles
from .base import Backward, RankContext, Strategy, Unit
from .half_precision import HALF_DTYPES
from .profile import Profile
from .reducer import ReducerOptions
from .replication import broadcast_unless_equal
from .unit_reducers import UnitReducers

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

COMPRESSED = (
    "With --compress gradients are communicated in half precision, {digits} digits: numbers are "
    "near one device's (about 1e-2 of a step), not equal to them."
)
DIGITS = {"bf16": "about two", "fp16": "about three"}
FIND_UNUSED = (
    "--find-unused changes nothing here: parameters that a loss does not use are always found, "
    "by flags that are reduced with the gradients."
)


class DistributedDataParallel(Strategy):
    """Replicated parameters, averaged gradients."""

    profile: ClassVar[Profile] = profiles.DDP
    drops_units: ClassVar[bool] = True

    def __init__(self, context: RankContext) -> None:
        """Initialize without any unit."""
        super().__init__(context)
        self._units: list[Unit] = []
        self._reducers = UnitReducers(self._reducer_options())

    @property
    def replica_group(self) -> ProcessGroup | None:
        """The ranks that have the same parameters; None for all."""
        return self.dp_group

    def prepare(self, units: list[Unit]) -> None:
        """Give the ranks of ``replica_group`` the values of the first, and hook the parameters."""
        self._notice_options()
        for unit in units:
            broadcast_unless_equal([*unit.parameters(), *unit.buffers()], self.replica_group)
        self._hook(units)

    def drop_units(self) -> None:
        """Drop all references to units."""
        self._reducers.close()
        self._units = []

    def _notice_options(self) -> None:
        if self.options.compress is not None:
            text = COMPRESSED.format(digits=DIGITS[self.options.compress])
            self.notice("compress", text)
        if self.options.find_unused:
            self.notice("find-unused", FIND_UNUSED)

    def _hook(self, units: list[Unit]) -> None:
        self._units = units
        # On one rank, its gradients are those of the whole batch: plain training.
        self._reducers.create(units if self.dp_size > 1 else [])

    def _reducer_options(self) -> ReducerOptions:
        compress = self.options.compress
        return ReducerOptions(
            self.options.bucket_views,
            self.options.static_graph,
            None if compress is None else HALF_DTYPES[compress],
            self.dp_group,
        )

    def begin_backward(self, backward: Backward) -> None:
        """Prepare for gradients, also of parameters that the cell has unfrozen since."""
        if self._reducers.changed():
            self._check_static()
            self._hook(self._units)
        self._reducers.begin(backward)

    def _check_static(self) -> None:
        if self._reducers.assumes_static_graph:
            what = "--static-graph: the cell has frozen or unfrozen parameters during training"
            raise StrategyError(format_message(what, instead="%%mgpu without --static-graph"))

    def end_backward(self, backward: Backward) -> None:
        """Average the gradients."""
        self.reached_parameters = self._reducers.end()

    def count_hooks(self, parameter: Tensor) -> int:
        """Return the number of reducers that have a hook on ``parameter``: one, or none."""
        return self._reducers.count_hooks(parameter)

    def replicated_parameters(self) -> list[Tensor]:
        """Return all parameters."""
        return [parameter for unit in self._units for parameter in unit.parameters()]

    def release(self) -> None:
        """Remove all hooks."""
        self._reducers.close()
