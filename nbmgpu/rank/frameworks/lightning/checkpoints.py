"""``--checkpoint-every`` and ``--resume`` for Lightning's Trainer, by its own checkpoints.

Lightning begins a resumed epoch with the first batch of its loader.  So checkpoints are written
between epochs: one that is due within an epoch at its end.
"""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmgpu.rank import current
from nbmgpu.rank.store.broadcast import barrier
from nbmgpu.runs.trainer_checkpoint import LIGHTNING_FILE

from .library import LightningLibrary

if TYPE_CHECKING:
    from nbmgpu.rank.checkpoints.trainers import TrainerCheckpoints

CKPT_PATH = 4
"""Position of ``ckpt_path`` among the arguments of ``Trainer.fit``."""


class CheckpointPatch:
    """Lets Trainers save when a checkpoint is due, and begin at the one that is resumed."""

    def __init__(self, library: LightningLibrary) -> None:
        """Patch ``library``."""
        self.library = library

    def install(self) -> None:
        """Install the patches, for the rest of this process."""
        self.library.wrap("trainer.trainer.Trainer._fit_impl", self._resuming)
        self.library.wrap("loops.fit_loop._FitLoop.run", self._restoring)
        self.library.wrap("loops.fit_loop._FitLoop.on_advance_end", self._saving)

    def _resuming(self, original: Any) -> Any:
        has_weights_only = "weights_only" in inspect.signature(original).parameters

        def fit(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            checkpoints = _checkpoints()
            if checkpoints is None or not (folder := checkpoints.begin_training("lightning")):
                return original(trainer, *args, **kwargs)
            more = {"weights_only": False} if has_weights_only else {}
            kwargs |= {"ckpt_path": str(folder / LIGHTNING_FILE), **more}
            return original(trainer, *args[:CKPT_PATH], **kwargs)

        return fit

    def _restoring(self, original: Any) -> Any:
        """Restore the random states, which Lightning does not save, before it reads a batch."""

        def run(loop: Any) -> None:
            if (checkpoints := _checkpoints()) is not None:
                checkpoints.restore_random_states()
            original(loop)

        return run

    def _saving(self, original: Any) -> Any:
        def on_advance_end(loop: Any) -> None:
            original(loop)
            if (checkpoints := _checkpoints()) is not None and checkpoints.is_due(ends_epoch=True):
                checkpoints.write("lightning", functools.partial(_save, loop.trainer), True)

        return on_advance_end


def _save(trainer: Any, folder: Path) -> None:
    try:
        trainer.save_checkpoint(folder / LIGHTNING_FILE)
    except OSError:
        barrier()  # the other ranks come to that of Trainer.save_checkpoint
        raise


def _checkpoints() -> TrainerCheckpoints | None:
    return current.trainer_checkpoints
