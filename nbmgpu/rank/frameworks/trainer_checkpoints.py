"""``--checkpoint-every`` and ``--resume`` for transformers' Trainer, by its own checkpoints."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from nbmgpu.patches import PatchStack
from nbmgpu.rank import current
from nbmgpu.rank.files.writes import unpatched
from nbmgpu.rank.store.broadcast import sum_over_ranks

from .trainer_loop import TRAINER

LOSS_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")
"""What a Trainer computes logged losses and the mean loss from, and does not save."""

LOSS_SUMS_FILE = "loss_sums.json"


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
            if checkpoints is None or not (folder := checkpoints.begin_training("transformers")):
                return original(trainer, resume_from_checkpoint, *args, **kwargs)
            with _continued(trainer, folder):
                return original(trainer, str(folder), *args, **kwargs)

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
        with unpatched():  # rank 0 needs no file that others might read
            _save_loss_sums(trainer, folder)


def _save_loss_sums(trainer: Any, folder: Path) -> None:
    """Write the sums of losses on rank 0; all ranks call it together."""
    own = {name: float(vars(trainer)[name]) for name in LOSS_SUMS if name in vars(trainer)}
    sums = sum_over_ranks([*own.values(), 1.0])
    means = {name: value / sums[-1] for name, value in zip(own, sums, strict=False)}
    if dist.get_rank() == 0:
        (folder / LOSS_SUMS_FILE).write_text(json.dumps(means))


class _LossSums(TrainerCallback):
    """Restores the sums of losses, which a Trainer sets to 0 before this event."""

    def __init__(self, trainer: Any, folder: Path) -> None:
        self._trainer = trainer
        self._sums = json.loads((folder / LOSS_SUMS_FILE).read_text())

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        state = vars(self._trainer)
        for name, value in self._sums.items():
            if torch.is_tensor(state[name]):
                state[name].fill_(value)
            else:
                state[name] = type(state[name])(value)


@contextmanager
def _continued(trainer: Any, folder: Path) -> Iterator[None]:
    """Let a training that resumes log what the unbroken one does.

    An evaluation before the first step is in the logs of the interrupted one.
    """
    before = trainer.args.eval_on_start
    callback = _LossSums(trainer, folder)
    trainer.add_callback(callback)
    trainer.args.eval_on_start = False
    try:
        yield
    finally:
        trainer.args.eval_on_start = before
        trainer.remove_callback(callback)


def _arrange(folder: Path) -> None:
    """Move the files of a Trainer's checkpoint out of the folder that it has made in ``folder``."""
    for written in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        for path in written.iterdir():
            path.rename(folder / path.name)
        written.rmdir()
