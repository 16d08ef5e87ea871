"""Writes checkpoints of a running cell, and resumes a cell from one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from nbmgpu.options.checkpoint_options import CheckpointInterval
from nbmgpu.rank import current
from nbmgpu.rank.reporting import notices
from nbmgpu.runs.checkpoint import Checkpoint, step_folder
from nbmgpu.runs.checkpoint_description import CheckpointDescription, LoopPosition, TensorCounts

from .agreement import IterationAgreement
from .capture import capture
from .constants import Constants
from .frames import UserFrame, unfollowed_caller, user_frames
from .instrumentation import Instrumentation
from .loops import LoopStack
from .position import restore_position, training_position
from .random_positions import RandomPosition
from .resume import Resume
from .schedule import CheckpointSchedule
from .trainers import TrainerCheckpoints

if TYPE_CHECKING:
    from nbmgpu.rank.files.saves import Saves
    from nbmgpu.rank.session import TrainingSession
    from nbmgpu.rank.shell import RankShell
    from nbmgpu.runs.run import Run

ERROR_GRACE = 10.0
"""Seconds to wait for a checkpoint that is being written when the cell has failed."""


class Checkpointer:
    """The checkpoints of one rank, between the iterations of the cell's loops.

    Attributes:
        loops: the loops that are running.
    """

    def __init__(
        self,
        run: Run,
        session: TrainingSession,
        shell: RankShell,
        interval: CheckpointInterval | None,
        checkpoint: Checkpoint | None,
        keep: int,
        saves: Saves,
    ) -> None:
        """Prepare to write a checkpoint every ``interval``, and to resume from ``checkpoint``.

        All ranks call it together.  The newest ``keep`` checkpoints are kept.  Trainers write files
        by ``saves``.
        """
        from .writer import CheckpointWriter  # takes half as long to import as torch itself

        group = dist.new_group(backend="gloo")
        self.loops = LoopStack(lambda: session.progress.step)
        self._run = run
        self._session = session
        self._shell = shell
        of_trainer = checkpoint if checkpoint and checkpoint.description.trainer else None
        self._checkpoint_time = checkpoint.description.time if checkpoint else 0.0
        self._resume = Resume(checkpoint) if checkpoint and not of_trainer else None
        self._group = group
        self._writer = CheckpointWriter(session.rank_info.rank, session.recorder, keep)
        rank, nodes = session.rank_info.rank, run.record.nodes
        agreement = IterationAgreement(run.folder, group, rank, nodes)
        self._schedule = CheckpointSchedule(interval, session.progress, agreement, asks=rank == 0)
        self._instrumentation = Instrumentation(self.loops, self.loops.enter, self._skips_iteration)
        self._random = RandomPosition(session.streams, self.loops, self._schedule.is_near)
        self._of_trainers = TrainerCheckpoints(
            run, session, self._random, self._schedule, group, of_trainer, keep, saves
        )
        self._constants = Constants({})

    def install(self) -> None:
        """Follow the loops of the cell, of functions in the shell's namespace, and loaders."""
        current.trainer_checkpoints = self._of_trainers
        self._shell.ast_transformers.append(self._instrumentation.transformer())
        self._instrumentation.instrument_functions(self._shell.user_ns)
        self._session.loaders.follow = self._follow
        namespace = self._shell.user_ns
        self._session.recorder.drops_metrics = self._is_to_resume
        if self._checkpoint_time:
            self._session.trackers.resumed_from = self._checkpoint_time
        self._constants = Constants(namespace)
        self._random.begin(self._resume, self._session.rank_info.rank)
        self._of_trainers.begin_cell()

    @property
    def _is_to_resume(self) -> bool:
        """Whether the cell has not come to its checkpoint yet."""
        return self._resume is not None or self._of_trainers.is_to_resume

    def close(self, failed: bool) -> None:
        """Complete the last checkpoint, and give functions their own code again."""
        self._writer.finish(ERROR_GRACE if failed else None)
        transform: Any = self._shell.transform_cell
        self._instrumentation.restore_functions(transform(self._run.cell))
        recorder = self._session.recorder
        if self._is_to_resume and not failed:
            recorder.notice("not-resumed", notices.NOT_RESUMED)
        elif (
            self._schedule.interval is not None
            and not self.loops.active
            and not self._of_trainers.is_used
            and self._session.progress.step
        ):
            recorder.notice("no-checkpoints", notices.NO_CHECKPOINTS)

    def _follow(self, begin: Callable[[], Iterator[Any]], frame: FrameType) -> Iterator[Any]:
        """Begin a pass over a loader for ``frame``, and follow its batches."""
        self._of_trainers.begin_pass()
        return self._random.follow(begin, frame, self._resume)

    def _skips_iteration(self, number: int) -> bool:
        """Begin an iteration of a loop; return whether a resumed cell skips its body.

        Raises:
            ResumeError: the checkpoint does not fit the cell.
        """
        depth = len(self.loops.active)
        loop = self.loops.begin_iteration(number)
        if self._resume is not None:
            return self._advance(self._resume)
        has_ended_loop = len(self.loops.active) < depth
        self._writer.poll()
        if self._schedule.is_due(has_ended_loop and self._session.progress.step > loop.step):
            self._schedule.restart()
            if self._can_resume(sys._getframe(1)):
                self._write(sys._getframe(1))
        loop.step = self._session.progress.step
        return False

    def _can_resume(self, frame: FrameType) -> bool:
        """Return whether a resumed cell can come to this iteration; otherwise give a notice."""
        namespace, recorder = self._shell.user_ns, self._session.recorder
        caller = unfollowed_caller(frame, namespace, self._instrumentation.is_followed)
        if caller:
            recorder.notice("no-checkpoints", notices.UNFOLLOWED_CALLER.format(caller=caller))
        elif not self._random.is_recorded:
            recorder.notice("no-checkpoints", notices.ITERATOR_OF_EARLIER_ITERATION)
        return self._random.is_recorded and not caller

    def _frames(self, frame: Any) -> tuple[list[UserFrame], dict[str, Any]]:
        """Return the frames of the user's code and their variables.

        Left out are targets of running loops, which a resumed cell binds itself, and constants of
        the notebook.
        """
        frames = user_frames(frame, self._shell.user_ns)
        is_own = self._shell.is_own
        variables = {k: v for each in frames for k, v in each.variables(is_own).items()}
        self._constants.drop_from(variables)
        for loop in self.loops.active:
            name = loop.site.function.rpartition(".")[2]
            for each in frames:
                if each.function == name:
                    for target in loop.site.targets:
                        variables.pop(f"{each.prefix}{target}", None)
        return frames, variables

    def _write(self, frame: Any) -> None:
        begun, session = time.perf_counter(), self._session
        rank = session.rank_info.rank
        with session.losses.batch_dependence.paused():
            _, variables = self._frames(frame)
            with session.strategy.describing_states():
                state = capture(variables, rank, session.rank_info.world_size, self._group)
        random: list[Any] = [None] * session.rank_info.world_size
        dist.all_gather_object(random, self._random.states(), group=self._group)
        if rank == 0 and state.left_out:
            names = ", ".join(f"`{name.rpartition(':')[2]}`" for name in state.left_out)
            session.recorder.notice("left-out", notices.LEFT_OUT.format(names=names))
        description = CheckpointDescription(
            **training_position(session),
            levels=[
                LoopPosition(
                    None if loop is self.loops.cell else loop.identity,
                    loop.count,
                    list(loop.trained),
                )
                for loop in self.loops.levels
            ],
            tensors=TensorCounts(state.num_states, state.num_tensors),
            left_out=state.left_out,
        )
        folder = step_folder(self._run.folder, description.step)
        session.recorder.flush()  # a rank that is killed later leaves its points up to here
        self._writer.write(folder, state, random, description, begun)

    def _advance(self, resume: Resume) -> bool:
        """Go on towards the checkpoint; return whether the iteration is skipped."""
        active, frame = self.loops.active, sys._getframe(2)
        if resume.skips(active):
            if active[-1].count == 1 and resume.is_before(active):
                resume.bind_missing(*self._frames(frame))
            self._session.loader_events.current_batch.skip()
            return True
        if not resume.is_reached(active):
            return False
        session = self._session
        with session.losses.batch_dependence.paused():
            resume.apply(*self._frames(frame), session.strategy)
        if self._random.restore(resume):
            session.loader_events.current_batch.skip()
        restore_position(session, resume.description)
        self._schedule.restart()
        active[-1].step = session.progress.step
        self._resume = None
        return False


def checkpointer_of(
    run: Run, session: TrainingSession, shell: RankShell, saves: Saves
) -> Checkpointer | None:
    """Return the checkpointer that the options of a run ask for."""
    values = run.record.options.values
    every, resume = values.get("checkpoint_every"), values.get("resume")
    if not every and not resume:
        return None
    interval = CheckpointInterval.parse(every) if every else None
    checkpoint = Checkpoint(Path(resume)) if resume else None
    return Checkpointer(run, session, shell, interval, checkpoint, values.get("keep") or 3, saves)
