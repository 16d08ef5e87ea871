"""Checkpoints of library Trainers, which write and read them by their own means."""

from __future__ import annotations

import functools
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed import ProcessGroup

from nbmgpu.environment import random_state
from nbmgpu.rank.files.writes import unpatched
from nbmgpu.rank.store.broadcast import barrier, broadcast_from_rank_0
from nbmgpu.runs.checkpoint import RANDOM, Checkpoint, complete, remove_old, step_folder
from nbmgpu.runs.checkpoint_description import CheckpointDescription
from nbmgpu.runs.events import CheckpointWritten
from nbmgpu.runs.preallocation import require_space
from nbmgpu.runs.trainer_checkpoint import TrainerLibrary

from .failures import discard, text_of
from .position import restore_position, training_position
from .random_positions import RandomPosition
from .schedule import CheckpointSchedule
from .sizes import state_bytes

if TYPE_CHECKING:
    from nbmgpu.rank.files.saves import Saves
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
        saves: Saves,
    ) -> None:
        """Write one when ``schedule`` says so; a training goes on at ``checkpoint``.

        ``group`` has all ranks, with gloo.  Trainers write their files by ``saves``.
        """
        self.is_used = False
        self._schedule = schedule
        self._group = group
        self._run = run
        self._session = session
        self._random = random
        self._checkpoint = checkpoint
        self._keep = keep
        self._saves = saves
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
        self,
        library: TrainerLibrary,
        save: Callable[[Path], None],
        ends_epoch: bool,
        arrange: Callable[[Path], None] = lambda folder: None,
    ) -> None:
        """Write a checkpoint; all ranks call it together.

        If it cannot be written, a notice says so, and the training goes on.

        Args:
            library: the library of the Trainer.
            ends_epoch: whether the pass over its loader is over.
            save: writes its states into an empty folder, on all ranks together.
            arrange: moves files there, on rank 0, when all ranks have saved.
        """
        begun, session = time.perf_counter(), self._session
        rank, step = session.rank_info.rank, session.progress.trained_step
        self._schedule.restart()
        session.recorder.flush()  # a rank that is killed later leaves its points up to here
        folder, needed = step_folder(self._run.folder, step), state_bytes(session.trained.units)
        error = _error_of(functools.partial(_make, folder, needed)) if rank == 0 else ""
        if not (error := broadcast_from_rank_0(error)):
            error = self._save(save, folder)
        begun_with = None if ends_epoch else self._random.newest_pass
        own = TrainerRandomStates(self._random.initial, session.streams.states(), begun_with)
        of_ranks: list[Any] = [None] * session.rank_info.world_size
        dist.all_gather_object(of_ranks, (own, error), self._group)
        error = next((each for _, each in of_ranks if each), "")
        if rank == 0:
            random = pickle.dumps([own for own, _ in of_ranks])
            write = functools.partial(self._complete, library, folder, random, arrange)
            error = error or _error_of(write)
            if error:
                discard(folder, step, needed, error, session.recorder)
            else:
                self._report(folder, step, time.perf_counter() - begun)
        barrier()

    def _save(self, save: Callable[[Path], None], folder: Path) -> str:
        """Save into ``folder``; return an error as text.

        Ranks save one file after the other together, so rank 0 comes to all of them.
        """
        failures: list[Exception] = []
        self._saves.failures = failures
        try:
            error = _error_of(functools.partial(save, folder))
        finally:
            self._saves.failures = None
        return text_of(failures[0]) if failures else error

    def _complete(
        self,
        library: TrainerLibrary,
        folder: Path,
        random: bytes,
        arrange: Callable[[Path], None],
    ) -> None:
        with unpatched():  # other ranks do not look for these files
            arrange(folder)
        (folder / RANDOM).write_bytes(random)
        description = CheckpointDescription(
            **training_position(self._session), trainer=library, training=self._trainings
        )
        complete(folder, description)

    def _report(self, folder: Path, step: int, held: float) -> None:
        with unpatched():  # rank 0 alone removes them
            remove_old(folder.parent, self._keep)
        nbytes = sum(path.stat().st_size for path in folder.rglob("*"))
        self._session.recorder.events.emit(
            CheckpointWritten, step=step, nbytes=nbytes, held=held, seconds=held
        )


def _error_of(write: Callable[[], None]) -> str:
    """Call ``write``; return the error that it raises, as text."""
    try:
        write()
    except Exception as error:  # of the library, or of one that it writes with
        return text_of(error)
    return ""


def _make(folder: Path, nbytes: int) -> None:
    """Make the folder of a checkpoint of ``nbytes``, which must fit."""
    folder.mkdir(parents=True, exist_ok=True)
    require_space(folder, nbytes)
