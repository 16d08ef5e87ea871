"""``--exact always``: every number is that of one device, under data-parallel strategies.

All ranks load the whole batch, and the cell runs as on one device: its losses, metrics, indices and
random numbers are of the whole batch.  Only the models' modules run on this rank's samples, where a
trial has shown that this is right; their outputs are gathered, and gradients are summed.  So every
rank has the gradient of the whole batch, and what a strategy makes of it, such as the mean over the
ranks of which each keeps a part, is that gradient, too.
"""

from __future__ import annotations

import functools

import torch.distributed as dist
from torch.distributed import ProcessGroup

from nbmgpu.strategies.base import Backward, RankContext, Strategy, Unit

from .models import SplitModels

WHOLE = (
    "--exact always: {name} runs on the whole batch on every rank, which is right and saves no "
    "time: {reason}."
)

LATE = (
    "--exact always: from here on, {name} runs on the whole batch on every rank: {reason}, other "
    "than in an earlier trial. Numbers of steps before may differ from one device's. Try: %%mgpu "
    "--exact never, or compute what depends on the batch outside of the model."
)

NOTHING = (
    "--exact always has split no batch: no module was called with one, again and again. Tensors "
    "that are parameters of no module cannot be divided. Every rank has computed everything. Try: "
    "%%mgpu --exact never"
)


class WholeBatches(Strategy):
    """Added to a strategy: modules run on some of the samples, and the cell sees all."""

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        self._models: SplitModels | None = None
        self._has_trained = False
        world = dist.group.WORLD
        if self.world_size > 1 and world is not None:
            self._models = SplitModels(world, self._notice_whole, self._notice_late)

    @property
    def replica_group(self) -> ProcessGroup | None:
        """All ranks have the same parameters."""
        return None

    @property
    def state_group(self) -> ProcessGroup | None:
        """All ranks share optimizer states."""
        return None

    def prepare(self, units: list[Unit]) -> None:
        """Give all ranks the values of rank 0, and wrap the modules."""
        super().prepare(units)  # type: ignore[safe-super]  # the strategy's
        if self._models is not None:
            for module in (module for unit in units for module in unit.modules):
                self._models.wrap(module)

    def begin_backward(self, backward: Backward) -> None:
        """Begin a backward pass."""
        super().begin_backward(backward)  # type: ignore[safe-super]  # the strategy's
        self._has_trained = True
        if self._models is not None:
            self._models.is_in_pass = True

    def end_backward(self, backward: Backward) -> None:
        """End a backward pass."""
        if self._models is not None:
            self._models.is_in_pass = False
        super().end_backward(backward)  # type: ignore[safe-super]  # the strategy's

    def _notice_whole(self, name: str, reason: str) -> None:
        self.notice(f"whole-batch-{name}", WHOLE.format(name=name, reason=reason))

    def _notice_late(self, name: str, reason: str) -> None:
        self.notice(f"late-{name}", LATE.format(name=name, reason=reason))

    def drop_units(self) -> None:
        """Drop all references to units."""
        super().drop_units()
        if self._models is not None:
            self._models.drop()

    def finish(self) -> None:
        """Gather the outputs that the cell still holds, and say so if nothing was split."""
        super().finish()
        if self._models is not None:
            self._models.gather_outputs()
            is_model = self._models.has_models or self._has_trained
            if is_model and not self._models.has_split:
                self.notice("no-batch", NOTHING)

    def release(self) -> None:
        """Remove all hooks and patches."""
        super().release()  # type: ignore[safe-super]  # the strategy's
        if self._models is not None:
            self._models.remove()


@functools.cache
def with_whole_batches(strategy: type[Strategy]) -> type[Strategy]:
    """Return a data-parallel strategy for a cell that sees whole batches."""
    return type(strategy.__name__, (WholeBatches, strategy), {"__doc__": strategy.__doc__})
