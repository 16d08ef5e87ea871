"""The entry point of a rank: set up the process, prepare, run the cell, finish."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nbmgpu.patches import on_missing
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Started, Status
from nbmgpu.runs.failure import INTERRUPTED, UNREPORTED
from nbmgpu.runs.held_ranks import mark_held
from nbmgpu.runs.run import MANY_RANKS, Run
from nbmgpu.strategies import collectives
from nbmgpu.strategies.shared_memory.collectives import SharedMemoryCollectives
from nbmgpu.system.parent_death import die_with_parent
from nbmgpu.system.processes import own_process

from . import command_line
from .hang_reports import HangReports
from .held_rank import begin_next, wait_for_next
from .interrupts import InterruptHandler
from .metrics.heartbeat import HeartbeatThread
from .reporting import failures, stdio
from .reporting.recorder import Recorder
from .shutdown import finish
from .startup import prepare

if TYPE_CHECKING:
    from .rank_environment import RankEnvironment
    from .startup import PreparedRank


def main() -> NoReturn:
    """Run the rank that the command line and the environment variables describe."""
    folder, environment = command_line.parse()
    run = Run(folder)
    sys.path[:] = run.record.kernel.sys_path
    run_rank(run, environment)


def run_rank(run: Run, environment: RankEnvironment) -> NoReturn:
    """Run one rank of ``run`` in this process, and exit without tearing the interpreter down.

    Teardown sometimes aborts in threads of the process group (measured: 2 of 24).
    """
    rank = environment.rank
    environment.apply()
    if environment.shared_memory is not None:
        collectives.shared = SharedMemoryCollectives(environment.shared_memory, rank)
    code = 1
    try:
        if environment.parent is not None:
            die_with_parent(environment.parent, signal.SIGKILL)
        following: Run | None = run
        held: PreparedRank | None = None
        while following is not None:
            code, held = _run_in_folder(following, environment, held)
            following = None if held is None else wait_for_next(held.run)
    except BaseException:
        traceback.print_exc()
    finally:
        stdio.flush()
        os._exit(code)


def _run_in_folder(
    run: Run, environment: RankEnvironment, held: PreparedRank | None
) -> tuple[int, PreparedRank | None]:
    """Run the cell of ``run``, with all output into its folder.

    Args:
        run: the run.
        environment: of the rank.
        held: the rank as an earlier cell has left it; None for the first.

    Returns:
        The exit code, and the rank if it is held for the next cell.
    """
    rank = environment.rank
    InterruptHandler(run.folder, rank).install()
    log = run.log_path(rank)
    stdio.redirect(log)
    events = EventWriter(run.events_path(f"rank-{rank}"), rank)
    stdio.on_full_disk(events.report_full_disk)
    hang_reports = HangReports(run.folder, rank)  # first: its signal ends other processes
    device = run.record.devices[rank]
    events.emit(Started, **own_process(), device=device, host=environment.host)
    heartbeat = HeartbeatThread(events, log, device, hang_reports)
    with heartbeat:
        code, held = _run_cell(run, environment, events, log, heartbeat, held)
    is_one_of_many = rank > 0 and run.record.world_size > MANY_RANKS
    if not events.close(merge=is_one_of_many):
        return UNREPORTED, None
    if held is not None:
        stdio.flush()
        mark_held(run.folder, rank)
    return code, held


def _run_cell(
    run: Run,
    environment: RankEnvironment,
    events: EventWriter,
    log: Path,
    heartbeat: HeartbeatThread,
    held: PreparedRank | None,
) -> tuple[int, PreparedRank | None]:
    """Prepare the rank, run its cell and finish; see ``_run_in_folder``."""
    recorder = Recorder(events, run.record.world_size) if held is None else held.session.recorder
    on_missing(recorder.notice)
    try:
        events.emit(Status, state="loading")
        if held is None:
            rank = prepare(run, environment, recorder, log, heartbeat)
        else:
            rank = begin_next(held, run, events, log, heartbeat)
        events.emit(Status, state="running")
    except KeyboardInterrupt:  # a stop before the cell has begun: the state stays "loading"
        return INTERRUPTED, None
    except Exception as error:
        recorder.flush()
        failures.report(events, error, "")
        events.emit(Status, state="failed")
        return 1, None
    outcome = rank.shell.run(run.cell)
    if isinstance(outcome.error, KeyboardInterrupt):
        rank.session.settings.restore_gradients()
    finished = finish(rank, outcome)
    return finished.code, rank if finished.is_held else None
