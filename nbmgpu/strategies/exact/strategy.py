"""``--exact always``: every number is that of one device, for ``ddp`` and ``zero1``.

All ranks load the whole batch, and the cell runs as on one device: its losses, metrics, indices and
random numbers are of the whole batch.  Only the models' modules run on this rank's samples, where a
trial has shown that this is right; their outputs are gathered, and gradients are summed.
"""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed import ProcessGroup

from nbmgpu.strategies.base import RankContext, Unit
from nbmgpu.strategies.ddp import DistributedDataParallel
from nbmgpu.strategies.zero1 import ZeroStage1

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
    "--exact always has split no batch: no module of a model that is trained was called with one. "
    "Every rank has computed everything. Try: %%mgpu --exact never"
)


class ExactDataParallel(DistributedDataParallel):
    """Replicated parameters; modules run on some of the samples, and the cell sees all."""

    def __init__(self, context: RankContext) -> None:
        """Start without units."""
        super().__init__(context)
        self._models: SplitModels | None = None

    @property
    def replica_group(self) -> ProcessGroup | None:
        """All ranks have the same parameters."""
        return None

    def prepare(self, units: list[Unit]) -> None:
        """Give all ranks the values of rank 0, and wrap the modules."""
        super().prepare(units)
        world = dist.group.WORLD
        if self.world_size == 1 or world is None:
            return
        if self._models is None:
            self._models = SplitModels(world, self._notice_whole, self._notice_late)
        for module in (module for unit in units for module in unit.modules):
            self._models.wrap(module)

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
            if self._models.has_split_none():
                self.notice("no-batch", NOTHING)

    def release(self) -> None:
        """Remove all hooks and patches."""
        super().release()
        if self._models is not None:
            self._models.remove()


class ExactZeroStage1(ExactDataParallel, ZeroStage1):
    """The same, and each rank keeps the optimizer states of some of the parameters."""

    drops_units = False

    @property
    def state_group(self) -> ProcessGroup | None:
        """All ranks."""
        return None
