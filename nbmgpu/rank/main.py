"""The entry point of a rank: set up the process, prepare, run the cell, finish."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nbmgpu.patches import explain_missing, on_missing
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Started, Status
from nbmgpu.runs.failure import INTERRUPTED
from nbmgpu.runs.run import Run
from nbmgpu.strategies import all_reduce
from nbmgpu.system.parent_death import die_with_parent
from nbmgpu.system.processes import own_process

from . import command_line
from .hang_reports import HangReports
from .interrupts import InterruptHandler
from .metrics.heartbeat import HeartbeatThread
from .reporting import failures, stdio
from .reporting.recorder import Recorder
from .shutdown import finish
from .startup import prepare

if TYPE_CHECKING:
    from .rank_environment import RankEnvironment


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
    os.environ.update(environment.variables())
    if environment.interface:
        for library in ("GLOO", "NCCL"):  # also where the notebook has another one for a cluster
            os.environ[f"{library}_SOCKET_IFNAME"] = environment.interface
    if environment.shared_memory is not None:
        all_reduce.shared = all_reduce.SharedMemoryAllReduce(environment.shared_memory, rank)
    code = 1
    try:
        if environment.parent is not None:
            die_with_parent(environment.parent, signal.SIGKILL)
        InterruptHandler(run.folder).install()
        log = run.log_path(rank)
        stdio.redirect(log)
        events = EventWriter(run.events_path(f"rank-{rank}"), rank)
        stdio.on_full_disk(events.report_full_disk)
        hang_reports = HangReports(run.folder, rank)  # first: its signal ends other processes
        device = run.record.devices[rank]
        events.emit(Started, **own_process(), device=device, host=environment.host)
        heartbeat = HeartbeatThread(events, log, device, hang_reports)
        with heartbeat:
            code = _run_cell(run, environment, events, log, heartbeat)
        events.close()
    except BaseException:
        traceback.print_exc()
    finally:
        stdio.flush()
        os._exit(code)


def _run_cell(
    run: Run,
    environment: RankEnvironment,
    events: EventWriter,
    log: Path,
    heartbeat: HeartbeatThread,
) -> int:
    """Prepare the rank, run its cell and finish; return the exit code."""
    recorder = Recorder(events, run.record.world_size)
    on_missing(recorder.notice)
    try:
        events.emit(Status, state="loading")
        rank = prepare(run, environment, recorder, log, heartbeat)
        events.emit(Status, state="running")
    except KeyboardInterrupt:  # a stop before the cell has begun: the state stays "loading"
        return INTERRUPTED
    except Exception as error:
        recorder.flush()
        lines = traceback.format_exception(error)
        hint = explain_missing(error)
        failures.report(events, error, "", [*lines, *([f"\n{hint}"] if hint else [])])
        events.emit(Status, state="failed")
        return 1
    return finish(rank, rank.shell.run(run.cell))
