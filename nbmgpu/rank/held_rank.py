"""A rank that is held after a cell: it waits for the next run, and goes on with what it has.

Strategy, process group, patches and the objects that it trains stay.  What belongs to one run
begins anew: events, log, counters, the notebook's random states, and all names that the cell reads.
"""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nbmgpu.runs.held_ranks import following_run
from nbmgpu.runs.run import Run
from nbmgpu.serialization import StayingObjects, reachable
from nbmgpu.strategies.sharded_state import ShardedStates
from nbmgpu.strategies.sharding.full_tensor_view import FullTensorView

from . import startup
from .files import writes
from .store import broadcast

if TYPE_CHECKING:
    from nbmgpu.rank.shell import Outcome
    from nbmgpu.runs.event_file import EventWriter
    from nbmgpu.serialization import ReceivedBundle

    from .metrics.heartbeat import HeartbeatThread
    from .session import TrainingSession
    from .startup import PreparedRank

POLL = 0.01
"""Seconds between two looks for the next run."""


SAME_FAILURE = 5.0
"""Seconds within which ranks fail that fail at the same point."""


@dataclass(frozen=True)
class CommonEnd:
    """What all ranks with ``--hold`` know of each other at the end of the cell.

    Attributes:
        is_held: whether they stay for the next cell.
        is_same_failure: whether they do not, but have all failed at the same point, so that the
            model can be gathered: what earlier cells have trained is not lost.
    """

    is_held: bool = False
    is_same_failure: bool = False


def common_end(rank: PreparedRank, outcome: Outcome) -> CommonEnd:
    """Return how the cell has ended on all ranks; collective.

    Ranks also stay after a cell that has failed at the same point on all of them, in the notebook's
    own code: they have the same model, and none of them is within a call of it.
    """
    if not rank.run.record.options.holds:
        return CommonEnd()
    interrupted = rank.interrupts is not None and rank.interrupts.has_received
    ending = "" if interrupted else _ending(rank.session, outcome.error)
    is_same = broadcast.agree(ending, math.inf if outcome.error is None else SAME_FAILURE)
    stays = is_same and (outcome.error is None or _is_in_notebook(outcome.error))
    return CommonEnd(stays, is_same and not stays)


def _ending(session: TrainingSession, error: BaseException | None) -> str:
    """Return where and how the cell has ended; empty if the rank cannot go on from there."""
    progress = session.progress
    steps = f"after {progress.backwards_begun} passes"
    if error is None:
        return f"finished {steps}" if session.rank_info.shards_data else "finished"
    if not isinstance(error, Exception) or progress.backwards_begun != progress.backwards:
        return ""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{type(error).__name__} in line {line} of {frame.f_code.co_name} {steps}"


def _is_in_notebook(error: BaseException) -> bool:
    """Return whether ``error`` comes from the notebook's own code, not called by a library."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    names = [frame.f_globals.get("__name__") for frame in frames]
    return "__main__" in names and {*names[names.index("__main__") :]} == {"__main__"}


def staying_objects(session: TrainingSession, received: ReceivedBundle) -> StayingObjects:
    """Return what the strategy trains, which stays in the ranks as it may be too large to send."""
    units = session.trained.units
    modules = [module for unit in units for module in unit.modules]
    optimizers = [optimizer for unit in units for optimizer in unit.optimizers]
    roots = (*modules, *optimizers)
    parts = [part for module in modules for part in module.modules()]
    tensors = [tensor for unit in units for tensor in unit.parameters()]
    own = map(id, (*roots, *parts, *tensors))
    known = reachable((*roots, *tensors), received.memo_indices)
    return StayingObjects(frozenset(own) | known.keys(), (FullTensorView, ShardedStates), roots)


def held_bytes(session: TrainingSession) -> int:
    """Return the bytes of parameters, buffers and optimizer states that this rank stores."""
    total, local = 0, session.strategy.local_numel
    for unit in session.trained.units:
        parameters = unit.parameters()
        total += sum(local(p) * p.element_size() for p in parameters)
        total += sum(buffer.nbytes for root in unit.modules for buffer in root.buffers())
        for optimizer in unit.optimizers:
            # Not by its own methods, which gather the states of other ranks.
            for parameter, state in dict.items(optimizer.state):
                for value in state.values():
                    if isinstance(value, torch.Tensor):
                        is_part = value.shape == parameter.shape
                        size = local(parameter) if is_part else value.numel()
                        total += size * value.element_size()
    return total


def wait_for_next(run: Run) -> Run | None:
    """Return the run that the ranks of ``run`` are handed to; None if they are to end."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # only from a launcher that ends this process
    while (folder := following_run(run.folder)) is None:
        time.sleep(POLL)
    return Run(folder) if folder != run.folder else None


def begin_next(
    rank: PreparedRank, run: Run, events: EventWriter, log: Path, heartbeat: HeartbeatThread
) -> PreparedRank:
    """Prepare a rank that was held for the cell of ``run``.

    Args:
        rank: as it was prepared for its last run.
        run: the next one.
        events, log, heartbeat: of that run.
    """
    session, shell = rank.session, rank.shell
    if session.recorder.restart is not None:
        session.recorder.restart.give_up("runs in ranks that have run other cells")
    os.chdir(run.record.kernel.cwd)
    sys.path[:] = run.record.kernel.sys_path
    session.begin_run(events, run.record.options.values.get("steps"))
    shell.begin_run(events, session.recorder, log, session.rank_info.rank)
    startup.follow_run(run, session, shell, heartbeat)
    files = writes.FilePatch(session.rank_info.rank, run.folder)
    broadcast.begin_run(run.id)
    if rank.interrupts is not None:
        rank.interrupts.begin_run(run.folder, has_trained=True)
        rank.interrupts.install()
    received, memory_usage = startup.receive(run, session, shell, files, rank.received)
    profiler = startup.start_profiler(run, session, rank.backward_patch)
    return dataclasses.replace(
        rank,
        run=run,
        received=received,
        files=files,
        memory_usage=memory_usage,
        profiler=profiler,
    )
