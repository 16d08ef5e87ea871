"""Supervises the ranks of a run: reports their ends, and ends all of them when there is a reason.

The reasons are a rank that fails, the run's ``stop`` file, its time limit, a hang with
``--on-hang stop``, and a kernel that has given the run up.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended, Exited, Started
from nbmgpu.runs.folder import COLLECTED_FILE
from nbmgpu.runs.held_ranks import all_wait
from nbmgpu.runs.run import Run
from nbmgpu.runs.stop_request import read_stop_request
from nbmgpu.system.processes import own_process

from .final_checkpoint import FinalCheckpoint
from .hang.monitor import HangMonitor
from .rank_processes import RankProcesses
from .termination import Termination

POLL = 0.05
"""Seconds between two reads of what the kernel asks for."""

POLL_RANKS = 0.01
"""Seconds between two polls of the ranks, on systems without ``sigtimedwait``."""


def supervise(
    run: Run,
    ranks: RankProcesses,
    events: EventWriter,
    termination: Termination,
    ended: Iterable[tuple[int, int]] = (),
) -> None:
    """Return when every rank has ended, or is held; ``termination.ending`` then says how.

    A cell that handles its interrupt and then reaches its end has finished, as in a notebook.

    Args:
        run: the run, opened by this process; it is read, and so it must not be used by others.
        ranks: its ranks, which have been started.
        events: the writer of ``events/launcher.jsonl``; the caller emits ``Started`` and ``Ended``.
        termination: carries out the end of the run; it may have been started already.
        ended: what ``ranks.poll`` has returned since the run began.
    """
    timeout = run.record.options.timeout
    deadline = time.monotonic() + timeout if timeout else None
    hangs = HangMonitor(run, ranks, events)
    wait, holds = waiter(), run.record.options.holds
    while True:
        ended = [*ended, *ranks.poll()]
        if problem := ranks.problem():
            termination.start("failed", detail=problem)
        for rank, code in ended:
            events.emit(Exited, of_rank=rank, code=code, terminating=termination.started)
            termination.rank_ended(rank)
            if code != 0 or not _has_finished(run, rank):
                termination.start("failed")
        ended = ()
        is_over = not ranks.alive() or (holds and all_wait(run.folder, run.record.world_size))
        if is_over:
            is_asked_to_end = termination.started or stop_request(run.folder) is not None
            if ranks.is_verified() and not is_asked_to_end:
                wait()
                continue
            ranks.end_verification()
            break
        if (request := stop_request(run.folder)) is not None:
            termination.start("stopped", force=request == "force")
        if deadline is not None and time.monotonic() > deadline:
            termination.start("timeout", detail=f"longer than {timeout:g} s")
        if not termination.started and (hang := hangs.poll()) is not None and hang.stops:
            termination.start("failed", detail=hang.cause)
        termination.advance()
        wait()
    ranks_of_run = range(run.record.world_size)
    if termination.ending == "stopped" and all(_has_finished(run, rank) for rank in ranks_of_run):
        termination.withdraw()


def supervise_run(folder: Path, ranks: RankProcesses) -> None:
    """Supervise ranks that have been started, and write all events of ``events/launcher.jsonl``.

    For an engine whose supervisor is a thread of the kernel, or a process of its own.
    """
    run = Run(folder)
    events = EventWriter(run.events_path("launcher"), LAUNCHER)
    events.emit(Started, **own_process())
    termination = Termination(ranks, folder, FinalCheckpoint(run, events))
    supervise(run, ranks, events, termination)
    events.emit(Ended, ending=termination.ending, detail=termination.detail)
    events.close()


def stop_request(folder: Path) -> str | None:
    """Return ``"stop"`` or ``"force"`` if the end of the run was asked for, else None.

    A kernel that has given the run up needs nothing of it: that counts as ``"force"``.
    """
    if (folder / COLLECTED_FILE).exists():
        return "force"
    return read_stop_request(folder) or None


def waiter() -> Callable[[], object]:
    """Return a function that waits until a child process ends, or until the next poll is due."""
    if not hasattr(signal, "sigtimedwait"):  # macOS
        return lambda: time.sleep(POLL_RANKS)
    # Blocked, the signal of a child that ends between two waits is kept for the second.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    return lambda: signal.sigtimedwait([signal.SIGCHLD], POLL)


def _has_finished(run: Run, rank: int) -> bool:
    """Return whether ``rank`` reached its end; after ``os._exit(0)`` in a cell it has not."""
    run.refresh()
    return run.view.ranks[rank].state == "finished" or not run.folder.exists()
