"""The launcher: one process per run.

It starts the ranks and supervises them.  It ends all of them when one fails, when it is asked to,
or when its parent is gone: the fork server, which ends with the kernel, or the guard of a detached
run.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from nbmgpu.engines.restart import may_start_again
from nbmgpu.engines.store_server import StoreServer
from nbmgpu.engines.supervision import stop_request
from nbmgpu.engines.termination import Termination
from nbmgpu.runs import replacement
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended, Notice, RunEnding, Started
from nbmgpu.runs.folder import COLLECTED_FILE, SOCKETS
from nbmgpu.runs.run import Run
from nbmgpu.serialization.container import is_complete
from nbmgpu.system.parent_death import adopt_orphans, die_with_parent
from nbmgpu.system.processes import own_process, process_is_alive

from .cleanup import ForkedPids, clean_up, remove_folders
from .held_runs import SupervisedRuns
from .process_environment import ProcessEnvironment
from .processes import ForkedRanks, LocalRanks, TorchrunRanks

LOCALHOST = "127.0.0.1"

KERNEL_ENDED = "The kernel that had started the run has ended."
SERVER_ENDED = (
    "The kernel's fork server has ended, and with it the run: it was killed, or the kernel was "
    "shut down."
)
GUARD_ENDED = "The process that guards the detached run was killed, and with it the run."

TERMINATED = (
    "The run's launcher was ended by SIGTERM: by a job scheduler, by somebody, or by Stop where "
    "the disk is full."
)
STOPPED_BEFORE_START = "It was stopped, or given up, before its ranks had been started."
MAX_SOCKET_PARENT = 107 - len("/nbmgpu-12345678/listener-12345678")


def launch(folder: Path, environment: ProcessEnvironment, parent: int) -> None:
    """Run the ranks of the run in ``folder`` from start to end.

    Args:
        folder: the run folder.
        environment: what the ranks inherit from the kernel.
        parent: pid of the fork server, or of the guard, with which this process ends.
    """
    run = Run(folder)
    redirect_output(folder)
    events = EventWriter(run.events_path("launcher"), LAUNCHER)
    events.emit(Started, **own_process())
    die_with_parent(parent, signal.SIGTERM)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    environment.apply()
    os.chdir(run.record.kernel.cwd)
    sys.path[:] = run.record.kernel.sys_path
    reserved = _reserve_port()
    os.environ.update(
        MASTER_ADDR=LOCALHOST,
        MASTER_PORT=str(reserved.getsockname()[1]),
        TORCHELASTIC_USE_AGENT_STORE="True",
        TORCHELASTIC_RUN_ID=run.id,
        TORCHELASTIC_RESTART_COUNT="0",
        TORCHELASTIC_MAX_RESTARTS="0",
    )
    ranks: LocalRanks = TorchrunRanks(run) if run.record.options.fresh else ForkedRanks(run)
    runs = SupervisedRuns(run, events, ranks)
    signal.signal(signal.SIGTERM, lambda *_: _end(runs.run, runs.termination, parent))
    if stop_request(run.folder) is not None:  # the kernel may have given up waiting for this one
        runs.termination.start("stopped", STOPPED_BEFORE_START)
    else:
        forked = ForkedPids()  # before the ranks, so that they and their children are recorded
        socket_folder = _make_socket_folder()
        with suppress(OSError):  # the disk is full
            (run.folder / SOCKETS).symlink_to(socket_folder)
        try:
            store = StoreServer.on_unix_socket(socket_folder)
            ranks.start(socket_folder, store.address.init_method())
            store.start()  # a thread: after forks
            runs.supervise(on_next=lambda following: redirect_output(following.folder))
            run.refresh()
            pids = [view.process.pid for view in run.view.ranks if view.process is not None]
            clean_up(pids, forked, run.record.created)
        finally:
            remove_folders(run.folder)
            remove_folders(runs.run.folder)
            shutil.rmtree(socket_folder, ignore_errors=True)
    run, termination, events = runs.run, runs.termination, runs.events
    if runs.is_over:  # its ranks were held
        remove_data(run, "finished")
        return
    has_guard = run.record.options.detached and os.getppid() == parent
    if not (has_guard and termination.ending == "failed" and may_start_again(run)):
        remove_data(run, termination.ending)
    if termination.ending == "stopped" and termination.detail:
        events.emit(Notice, topic="stopped", text=termination.detail)
    events.emit(Ended, ending=termination.ending, detail=termination.detail)
    events.close()


def _end(run: Run, termination: Termination, parent: int) -> None:
    """End the run at SIGTERM: at once at a second one, or where the parent has ended."""
    ending: RunEnding = "failed" if stop_request(run.folder) is None else "stopped"
    kernel = run.record.kernel
    if os.getppid() == parent and not termination.started:
        termination.end_soon(TERMINATED)
        return
    if os.getppid() == parent:
        detail = TERMINATED
    elif run.record.options.detached:
        detail = GUARD_ENDED
    elif process_is_alive(kernel.pid, kernel.create_time):
        detail = SERVER_ENDED
    else:
        detail = KERNEL_ENDED
    termination.start(ending, detail, force=True)


def remove_data(run: Run, ending: RunEnding | None = None) -> None:
    """Remove bundle and results from the run folder of a kernel that has ended.

    Those of a detached run stay for a later kernel, if there are any.

    Args:
        run: the run.
        ending: how it ends; by default, how it has ended.
    """
    if run.to_collect:
        return
    storage, is_collected = run.record.storage, (run.folder / COLLECTED_FILE).exists()
    has_results = (ending or run.view.ending) == "finished" or is_complete(storage.results[0])
    is_needed = has_results and not is_collected and not replacement.is_claimed(run)
    if run.record.options.detached and is_needed:
        return
    for path in map(Path, (storage.bundle, *storage.results)):
        if path.parent == run.folder:
            path.unlink(missing_ok=True)


def _make_socket_folder() -> str:
    """Return a folder for sockets; empty if the disk is full.

    Paths of sockets have at most 107 bytes, and loader workers hang if theirs is longer.  As in
    Python 3.14, ``/tmp`` replaces a temporary folder whose path is too long.
    """
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) > MAX_SOCKET_PARENT:
        parent = "/tmp"
    try:
        return tempfile.mkdtemp(prefix="nbmgpu-", dir=parent)
    except OSError:
        return ""


def redirect_output(folder: Path) -> None:
    """Let this process write into the log of the launcher of the run in ``folder``."""
    fd = os.open(folder / "logs" / "launcher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)


def _reserve_port() -> socket.socket:
    """Return a socket at a port for ``MASTER_PORT``, at which nobody can listen.

    Libraries in the cell read the variable, and have no use for the port: the ranks have a process
    group.  One that tried to connect must not find a store of another user there.
    """
    reserved = socket.socket()
    reserved.bind((LOCALHOST, 0))
    return reserved
