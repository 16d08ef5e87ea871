"""Checkpoints of library Trainers, which write and read them by their own means."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from nbmgpu.environment import random_state
from nbmgpu.rank.store.broadcast import barrier
from nbmgpu.runs.checkpoint import RANDOM, Checkpoint, complete, remove_old, step_folder
from nbmgpu.runs.checkpoint_description import CheckpointDescription
from nbmgpu.runs.events import CheckpointWritten
from nbmgpu.runs.trainer_checkpoint import TrainerLibrary

from .position import restore_position, training_position
from .random_positions import RandomPosition
from .schedule import CheckpointSchedule

if TYPE_CHECKING:
    from nbmgpu.rank.session import TrainingSession
    from nbmgpu.runs.run import Run


@dataclass(frozen=True)
class TrainerRandomStates:
    """The random states of a rank in a checkpoint of a Trainer.

    Attributes:
        initial: before the cell: a sampler may take the seed from there.
        now: when the checkpoint was written.
        begun: before the pass over the loader that was in progress; None between epochs.
    """

    initial: Any
    now: Any
    begun: Any


class TrainerCheckpoints:
    """Tells a Trainer when a checkpoint is due, and where the training goes on.

    Attributes:
        is_used: whether a Trainer has asked whether one is due.
    """

    def __init__(
        self,
        run: Run,
        session: TrainingSession,
        random: RandomPosition,
        schedule: CheckpointSchedule,
        group: ProcessGroup | None,
        checkpoint: Checkpoint | None,
        keep: int,
    ) -> None:
        """Write one when ``schedule`` says so; a training goes on at ``checkpoint``.

        ``group`` has all ranks, with gloo.
        """
        self.is_used = False
        self._schedule = schedule
        self._group = group
        self._run = run
        self._session = session
        self._random = random
        self._checkpoint = checkpoint
        self._keep = keep
        self._states: TrainerRandomStates | None = None
        self._trainings = 0

    @property
    def is_to_resume(self) -> bool:
        """Whether a training is to go on at the checkpoint, and has not begun."""
        return self._checkpoint is not None

    def begin_cell(self) -> None:
        """Restore the random states that the interrupted cell began with.

        Raises:
            CheckpointError: a file of the checkpoint is missing or damaged.
            OwnershipError: another user may have written the checkpoint.
        """
        if self._checkpoint is not None:
            self._checkpoint.require_own()  # the library unpickles what is there, too
            self._checkpoint.check(content=True)
            states = pickle.loads(self._checkpoint.read(RANDOM))
            self._states = states[self._session.rank_info.rank % len(states)]
            self._random.initial = self._states.initial
            random_state.restore(self._random.initial)

    def begin_training(self, library: TrainerLibrary) -> Path | None:
        """Begin a training; return the folder with its states if it is the interrupted one.

        Earlier trainings of the cell run again, from their beginning.
        """
        self._trainings += 1
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.description.training != self._trainings:
            return None
        if checkpoint.description.trainer != library:
            return None
        restore_position(self._session, checkpoint.description)
        self._checkpoint = None
        self._schedule.restart()
        return checkpoint.folder

    def begin_pass(self) -> None:
        """Let the first pass of the resumed training begin in the order of the interrupted one."""
        if self._states is not None and not self.is_to_resume:
            if self._states.begun is not None:
                self._session.streams.restore(self._states.begun)
            self._states = None

    def restore_random_states(self) -> None:
        """Restore the random states that the checkpoint was written with, if a training resumes."""
        if self._states is not None and not self.is_to_resume:
            self._session.streams.restore(self._states.now)

    def is_due(self, ends_epoch: bool) -> bool:
        """Return whether a checkpoint is due after an optimizer step, or after an epoch."""
        self.is_used = True
        return self._schedule.is_due(ends_epoch) and not self.is_to_resume

    def write(
        self, library: TrainerLibrary, save: Callable[[Path], None], ends_epoch: bool
    ) -> None:
        """Write a checkpoint; all ranks call it together.

        Args:
            library: the library of the Trainer.
            ends_epoch: whether the pass over its loader is over.
            save: writes its states into a new folder, on all ranks together.
        """
        begun, session = time.perf_counter(), self._session
        self._schedule.restart()
        folder = step_folder(self._run.folder, session.progress.trained_step)
        save(folder)
        begun_with = None if ends_epoch else self._random.newest_pass
        own = TrainerRandomStates(self._random.initial, session.streams.states(), begun_with)
        random: list[Any] = [None] * session.rank_info.world_size
        dist.all_gather_object(random, own, self._group)
        if session.rank_info.rank == 0:
            (folder / RANDOM).write_bytes(pickle.dumps(random))
            description = CheckpointDescription(
                **training_position(session), trainer=library, training=self._trainings
            )
            complete(folder, description)
            remove_old(folder.parent, self._keep)
            held = time.perf_counter() - begun
            nbytes = sum(path.stat().st_size for path in folder.iterdir())
            session.recorder.events.emit(
                CheckpointWritten, step=description.step, nbytes=nbytes, held=held, seconds=held
            )
        barrier()
