"""``--checkpoint-every`` and ``--resume`` for transformers' Trainer, by its own checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from nbmgpu.patches import PatchStack
from nbmgpu.rank import current

from .trainer_loop import TRAINER


class TrainerCheckpointPatch:
    """Lets Trainers save when a checkpoint is due, and begin at the one that is resumed."""

    def __init__(self, patches: PatchStack) -> None:
        """Patch by ``patches``."""
        self.patches = patches
        self._step = -1

    def install(self) -> None:
        """Wrap methods of the class, for the rest of this process."""
        self.patches.wrap(f"{TRAINER}.train", self._resuming)
        self.patches.wrap(f"{TRAINER}._maybe_log_save_evaluate", self._saving)

    def _resuming(self, original: Any) -> Any:
        @functools.wraps(original)
        def train(
            trainer: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            checkpoints = current.trainer_checkpoints
            if checkpoints is not None and (folder := checkpoints.begin_training("transformers")):
                resume_from_checkpoint = str(folder)
            return original(trainer, resume_from_checkpoint, *args, **kwargs)

        return train

    def _saving(self, original: Any) -> Any:
        """Save after the Trainer's own logs, evaluations and checkpoints of a step.

        It calls this after each step, and once more at the end of an epoch.  A checkpoint that is
        due at the last step of an epoch waits for the latter, which a resumed run does not repeat.
        """

        @functools.wraps(original)
        def log_save_evaluate(trainer: Any, *args: Any, **kwargs: Any) -> None:
            original(trainer, *args, **kwargs)
            checkpoints, step = current.trainer_checkpoints, trainer.state.global_step
            ends_epoch, self._step = step == self._step, step
            is_last_of_epoch = float(trainer.state.epoch or 0.5).is_integer()
            if checkpoints is None or is_last_of_epoch != ends_epoch:
                return
            if checkpoints.is_due(ends_epoch):
                save = functools.partial(self._save, trainer)
                checkpoints.write("transformers", save, ends_epoch, _arrange)

        return log_save_evaluate

    def _save(self, trainer: Any, folder: Path) -> None:
        """Write a checkpoint of the Trainer into ``folder``, which is empty."""
        arguments, state = trainer.args, trainer.state
        changed = {"output_dir": str(folder), "save_total_limit": None,
                   "save_only_model": False, "push_to_hub": False}  # fmt: skip
        before = {name: getattr(arguments, name) for name in changed}
        best = state.best_model_checkpoint
        try:
            vars(arguments).update(changed)
            trainer._save_checkpoint(trainer.model, trial=None)
        finally:
            vars(arguments).update(before)
            state.best_model_checkpoint = best


def _arrange(folder: Path) -> None:
    """Move the files of a Trainer's checkpoint out of the folder that it has made in ``folder``."""
    for written in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        for path in written.iterdir():
            path.rename(folder / path.name)
        written.rmdir()
