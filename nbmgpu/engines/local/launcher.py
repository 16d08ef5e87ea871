"""The launcher: one process per run.

It starts the ranks, watches them and the run's ``stop`` file, and ends all of
them when one fails, when it is asked to, or when the launch server is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from nbmgpu.runs.events import LAUNCHER, Ended, EventWriter, Exited, RunEnding, Started
from nbmgpu.runs.run import COLLECTED_FILE, SHADOWS, STOP_FILE, Run
from nbmgpu.system.parent_death import adopt_orphans, die_with_parent
from nbmgpu.system.processes import own_process

from .cleanup import ForkedPids
from .process_environment import Inheritance
from .rank_processes import ForkedRanks, Ranks, TorchrunRanks
from .termination import Ending

POLL = 0.05
"""Seconds between looks at what the kernel asks for."""

POLL_RANKS = 0.01
"""Seconds between looks at the ranks, where the system does not tell that one has ended."""

DESERTED = "The kernel that had started the run, or its launch server, has ended."

TOO_LATE = "It was stopped, or given up, before its ranks had been started."


def launch(folder: str, inheritance: Inheritance, server: int) -> None:
    """Run the ranks of the run in ``folder`` from beginning to end, for the process ``server``."""
    run = Run(Path(folder))
    _redirect(run.folder / "logs" / "launcher.log")
    events = EventWriter(run.events_path("launcher"), LAUNCHER)
    events.emit(Started, **own_process())
    die_with_parent(server, signal.SIGTERM)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    inheritance.take_on()
    os.chdir(run.record.cwd)
    sys.path[:] = run.record.sys_path
    listener = socket.create_server(("127.0.0.1", 0))
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(listener.getsockname()[1]),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RUN_ID=run.id,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
    )
    ranks: Ranks = TorchrunRanks(run) if run.record.fresh else ForkedRanks(run)
    ending = Ending(ranks, run.folder)
    signal.signal(signal.SIGTERM, lambda *_: _deserted(run.folder, ending))
    if _asked_to_stop(run.folder) is not None:  # the kernel may have waited for us in vain
        ending.begin("stopped", TOO_LATE)
    else:
        forked = ForkedPids()  # before the ranks, so that they and theirs are noted
        sockets = _new_folder()
        try:
            ranks.start(sockets)
            store = None if run.record.fresh else _serve_store(listener)  # after the fork: a thread
            watch(run, ranks, events, ending)
            ranks.sweep(forked)
            del store
        finally:
            for left in (run.folder / SHADOWS, sockets):  # the first of ranks that were killed
                shutil.rmtree(left, ignore_errors=True)
    if not run.to_collect:  # a kernel that has ended has not removed what went through the disk
        _remove_data(run)
    events.emit(Ended, ending=ending.kind, detail=ending.detail)
    events.close()


def watch(run: Run, ranks: Ranks, events: EventWriter, ending: Ending) -> None:
    """Wait until every rank is gone; end them all as soon as there is a reason to."""
    deadline = time.monotonic() + run.record.timeout if run.record.timeout else None
    wait = _waiter()
    while True:
        for rank, code in ranks.poll():
            events.emit(Exited, of_rank=rank, code=code, asked=ending.begun)
            if code != 0 or not _has_finished(run, rank):
                ending.begin("failed")
        if not ranks.alive():
            break
        if (reason := _asked_to_stop(run.folder)) is not None:
            ending.begin("stopped", force=reason == "force")
        if deadline is not None and time.monotonic() > deadline:
            ending.begin("timeout", detail=f"longer than {run.record.timeout:g} s")
        ending.advance()
        wait()


def _waiter() -> Callable[[], object]:
    """Return what waits for a rank to end, or for the next look at what the kernel asks for."""
    if not hasattr(signal, "sigtimedwait"):  # macOS
        return lambda: time.sleep(POLL_RANKS)
    # Blocked, the signal of one that ends between two waits is kept for the second.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    return lambda: signal.sigtimedwait([signal.SIGCHLD], POLL)


def _has_finished(run: Run, rank: int) -> bool:
    """Tell whether ``rank`` got to its end; ``os._exit(0)`` in a cell looks as good as that."""
    run.refresh()
    return run.view.ranks[rank].state == "finished" or not run.folder.exists()


def _asked_to_stop(folder: Path) -> str | None:
    """Return what the kernel has asked for; one that has given the run up wants nothing of it."""
    if (folder / COLLECTED_FILE).exists():
        return "force"
    try:
        return (folder / STOP_FILE).read_text()
    except FileNotFoundError:
        return None


def _deserted(folder: Path, ending: Ending) -> None:
    """End the run: nobody is left to take its results; a kernel may have asked for that first."""
    kind: RunEnding = "failed" if _asked_to_stop(folder) is None else "stopped"
    ending.begin(kind, DESERTED, force=True)


def _remove_data(run: Run) -> None:
    """Remove bundle and results where they are files of the run's folder."""
    for path in map(Path, (run.record.bundle, *run.record.results)):
        if path.parent == run.folder:
            path.unlink(missing_ok=True)


def _new_folder() -> str:
    """Return a folder for sockets, whose paths may not be long; empty if there is no room."""
    try:
        return tempfile.mkdtemp(prefix="nbmgpu-")
    except OSError:
        return ""


def _redirect(log: Path) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)


def _serve_store(listener: socket.socket) -> object:
    """Serve the ranks' rendezvous on a socket that is bound to the loopback alone."""
    import torch.distributed as dist

    port = listener.getsockname()[1]
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(minutes=30),
        master_listen_fd=listener.detach(),
    )
