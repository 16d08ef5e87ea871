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
from nbmgpu.runs.checkpoint import (
    DESCRIPTION,
    RANDOM,
    Checkpoint,
    CheckpointDescription,
    remove_old,
    step_folder,
)
from nbmgpu.runs.events import CheckpointWritten
from nbmgpu.runs.folder import write_atomically
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
        """Write one when ``schedule`` says so; the first training goes on at ``checkpoint``.

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
        self._pass_states: Any = None

    @property
    def is_to_resume(self) -> bool:
        """Whether a training is to go on at a checkpoint, and none has begun."""
        return self._checkpoint is not None

    def take(self, library: TrainerLibrary) -> Path | None:
        """Return the folder in which the training that begins finds its states, if it does.

        Raises:
            OwnershipError: another user may have written it.
        """
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint.description.trainer != library:
            return None
        checkpoint.require_own()  # the library unpickles what is there
        restore_position(self._session, checkpoint.description)
        self._checkpoint = None
        self._schedule.restart()
        states = self._random_states(checkpoint.folder)
        random_state.restore(states.initial)
        self._pass_states = states.begun
        return checkpoint.folder

    def begin_pass(self) -> None:
        """Let the first pass of a resumed training begin in the order of the interrupted one."""
        if self._pass_states is not None:
            self._session.streams.restore(self._pass_states)
            self._pass_states = None

    def restore_random_states(self, folder: Path) -> None:
        """Restore the random states that a checkpoint was written with."""
        self._session.streams.restore(self._random_states(folder).now)

    def _random_states(self, folder: Path) -> TrainerRandomStates:
        states = pickle.loads((folder / RANDOM).read_bytes())
        own: TrainerRandomStates = states[self._session.rank_info.rank % len(states)]
        return own

    def is_due(self, ends_epoch: bool) -> bool:
        """Return whether a checkpoint is due after an optimizer step, or after an epoch."""
        self.is_used = True
        return self._schedule.is_due(ends_epoch)

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
            description = CheckpointDescription(**training_position(session), trainer=library)
            write_atomically(folder / DESCRIPTION, description.to_json())
            remove_old(folder.parent, self._keep)
            held = time.perf_counter() - begun
            nbytes = sum(path.stat().st_size for path in folder.iterdir())
            session.recorder.events.emit(
                CheckpointWritten, step=description.step, nbytes=nbytes, held=held, seconds=held
            )
        barrier()
