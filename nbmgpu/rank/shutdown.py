"""Finishes a rank after its cell: reports, restores the user's objects, sends the results."""

from __future__ import annotations

import dataclasses
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbmgpu.environment import random_state
from nbmgpu.environment.headers import RankPart, ResultHeader
from nbmgpu.errors import RankError, StrategyError
from nbmgpu.runs import reference
from nbmgpu.runs.events import Status
from nbmgpu.runs.folder import COLLECTING_FILE, post_mortem_path, write_atomically
from nbmgpu.serialization import NOTHING_STAYS, RANK_PART, is_complete, save_result, write_copies

from . import held_rank
from .comparable_values import is_small, summary_of
from .device import device_error
from .files import open_files
from .reporting import failures
from .reporting.final_report import FinalReport, emit_measurements
from .reporting.frame_capture import save_frames
from .store import broadcast

if TYPE_CHECKING:
    from nbmgpu.runs.run import Run
    from nbmgpu.serialization import StayingObjects
    from nbmgpu.strategies.base import Strategy

    from .session import TrainingSession
    from .shell import Outcome
    from .startup import PreparedRank

NEW_MEMORY = 3 << 30
"""Bytes per second at which memory is written that the process did not have before."""


@dataclasses.dataclass(frozen=True)
class Finished:
    """How a rank has finished: its exit code, or that it stays for the next cell."""

    code: int
    is_held: bool = False


def finish(rank: PreparedRank, outcome: Outcome) -> Finished:
    """Report how the cell ended, and send the results, also after a failure."""
    session, events = rank.session, rank.session.recorder.events
    if (error := device_error(session.strategy.device)) is not None:
        return Finished(_finish_without_device(rank, outcome, error))
    restart = session.recorder.restart
    if restart is not None and outcome.error is not None and session.progress.sharded_passes:
        restart.consider_error(outcome.error, rank.step_writer)
    limit, timer = session.step_options.limit, session.metrics.optimizer_timer
    stopped = isinstance(outcome.error, KeyboardInterrupt)
    if limit.on:
        emit_measurements(events, limit, timer, rank.memory_usage)
    if outcome.error is None:
        outcome = _mark_finished(outcome)  # first: ranks may be waiting for this one
        if rank.step_writer is not None:
            rank.step_writer.close()
    else:
        reference.end(rank.run.folder)
    if rank.profiler is not None:
        rank.profiler.close()
    end = held_rank.common_end(rank, outcome)
    if outcome.error is None and not end.is_held:
        outcome = _finish_strategy(session.strategy, outcome)
    if session.rank_info.rank == 0:
        with suppress(OSError):  # disk full, or folder deleted: results depend on neither
            write_atomically(rank.run.folder / COLLECTING_FILE, "")
    together = stopped and rank.interrupts is not None and rank.interrupts.stopped_together
    if together or end.is_same_failure:
        session.strategy.finish()
    with suppress(OSError):
        _report_end(rank, outcome, stopped)
    if rank.checkpointer is not None:
        rank.checkpointer.close(failed=outcome.error is not None)
    staying = NOTHING_STAYS
    if end.is_held:
        session.pause()
        staying = held_rank.staying_objects(session, rank.received)
    else:
        session.close()
        rank.step_patch.remove()
    session.streams.leave_all_steps()
    open_files.flush()
    rank.files.remove()
    _save_result(rank, outcome, session.trackers.left(), staying)
    if outcome.error is not None and not stopped:
        _save_frames(rank, outcome.error)
    for end_runs in session.trackers.at_exit:
        end_runs(int(outcome.error is not None))
    session.recorder.flush()
    state = "stopped" if stopped else "failed" if outcome.error else "finished"
    location = failures.location_in_cell(outcome.error, rank.run.cell) if outcome.error else ""
    events.emit(Status, state=state, detail=location if stopped else "")
    return Finished(int(outcome.error is not None), end.is_held)


def _finish_without_device(rank: PreparedRank, outcome: Outcome, error: RuntimeError) -> int:
    """Report the failure of a rank that cannot read its GPU any more; there are no results.

    Args:
        rank: the rank.
        outcome: how the cell ended: by ``error``, by another one, or before it was noticed.
        error: what every use of the GPU raises now.
    """
    if outcome.error is None:
        outcome = outcome.failed_by(error)
    with suppress(OSError):
        _report_end(rank, outcome, stopped=False)
    open_files.flush()
    rank.files.remove()
    rank.session.recorder.flush()
    rank.session.recorder.events.emit(Status, state="failed")
    return 1


def _mark_finished(outcome: Outcome) -> Outcome:
    """Tell the other ranks that the cell has ended here; return how, because this may fail too."""
    try:
        broadcast.mark_finished()
    except RankError as error:
        return outcome.failed_by(error)
    return outcome


def _finish_strategy(strategy: Strategy, outcome: Outcome) -> Outcome:
    """Gather what is sharded; return how the cell ended, because this may fail too."""
    try:
        strategy.finish()
    except StrategyError as error:
        return outcome.failed_by(error)
    return outcome


def _report_end(rank: PreparedRank, outcome: Outcome, stopped: bool) -> None:
    """Report the failure, or what is known only after the cell."""
    session, cell = rank.session, rank.run.cell
    events = session.recorder.events
    if outcome.error is not None and not stopped:
        hint = session.strategy.explain(outcome.error)
        failures.report(events, outcome.error, cell, outcome.traceback, hint)
    events.emit(Status, state="collecting")
    if outcome.error is None:
        _emit_final_report(session, cell, rank)


def _emit_final_report(session: TrainingSession, cell: str, rank: PreparedRank) -> None:
    limit = session.step_options.limit
    if limit.on:
        session.recorder.notice("step-limit", limit.summary)
    report = FinalReport(
        session.rank_info, session.progress, session.trained, session.losses, session.recorder
    )
    report.emit_digest(session.recorder.events)
    session.loader_events.current_batch.flush()  # passes that have ended count
    report.emit_notices(cell, rank.shell.user_ns)


def _save_result(
    rank: PreparedRank, outcome: Outcome, tracked: dict[str, Any], staying: StayingObjects
) -> None:
    """Save the variables of the cell: all from rank 0, small ones from others for comparison."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    record, number, namespace = rank.run.record, rank.session.rank_info.rank, rank.shell.user_ns
    path = record.storage.results[number]
    received, value, kept = rank.received, outcome.values(), outcome.kept
    variables = {name: namespace[name] for name in outcome.names if name in namespace}
    if received.number > 1:  # what earlier cells have bound was written back with them
        kept = outcome.kept - set(() if staying else received.held_names)
        known = {*received.names}
        variables = {n: v for n, v in variables.items() if n in known or n not in kept}
    last_batches = rank.session.loaders.context.steps.last_batches
    large = {name: value for name, value in variables.items() if not is_small(value)}
    summaries = {n: summary for n, v in large.items() if (summary := summary_of(v)) is not None}
    modules = rank.session.modules.changes()
    if number:
        batch, dp_rank = last_batches.part_of(variables), rank.session.rank_info.dp_rank
        part = RankPart(dp_rank, batch, summaries, modules)
        small = {name: value for name, value in variables.items() if name not in large}
        if staying:
            value = {name: last for name, last in value.items() if is_small(last)}
        write_copies(path, small | value | {RANK_PART: part}, namespace)
        return
    failed = outcome.error is not None
    save_result(
        path,
        variables | value,
        ResultHeader(
            random_state.capture(), outcome.deleted, sorted(kept), tracked,
            [index for index, obj in received.objects.items() if id(obj) in staying.ids],
            held_rank.held_bytes(rank.session) if staying else 0, last_batches.names_in(variables),
            summaries, modules, rank.session.settings.changes(rank.run.cell),
        ),
        received,
        namespace,
        kept,
        # Ranks that stay go on reading the bundle.
        lambda nbytes: (
            not staying and _others_are_done(rank.run, 0 if failed else nbytes / NEW_MEMORY)
        ),
        staying,
    )  # fmt: skip


def _save_frames(rank: PreparedRank, error: BaseException) -> None:
    """Save what the frames of ``error`` hold; a failure of that must not hide the error."""
    path = post_mortem_path(rank.run.folder, rank.session.rank_info.rank)
    with suppress(BaseException):
        save_frames(path, error, rank.shell.is_own, rank.run.record.world_size)
    error.__traceback__ = None  # the frames hold tensors


def _others_are_done(run: Run, timeout: float) -> bool:
    """Return whether no other rank reads the bundle any more, and no reference.

    Args:
        run: the run.
        timeout: seconds to wait for them.
    """
    deadline, others = time.monotonic() + timeout, run.record.storage.results[1:]
    while not (done := not reference.is_verified_now(run.folder) and all(map(is_complete, others))):
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
    return done
