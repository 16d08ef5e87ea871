"""The launcher: one process per run.

It starts the ranks, watches them and the run's ``stop`` file, and ends all of
them when one fails, when it is asked to, or when the launch server is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

from ..events import LAUNCHER, Ended, EventWriter, Exited, RunEnding, Started
from ..run import STOP_FILE, Run, RunRecord, own_process
from .ending import Ending
from .group import ForkedRanks, Ranks, TorchrunRanks
from .processes import adopt_orphans, die_with_parent

POLL = 0.01
"""Seconds between looks at the ranks."""


def launch(folder: str, environment: dict[str, str]) -> None:
    """Run the ranks of the run in ``folder`` from beginning to end."""
    run = Run(Path(folder))
    die_with_parent(os.getppid(), signal.SIGTERM)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _enter(run.record, environment)
    _redirect(run.folder / "logs" / "launcher.log")
    events = EventWriter(run.folder / "events" / "launcher.jsonl", LAUNCHER)
    events.emit(Started, **own_process())
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
    signal.signal(signal.SIGTERM, lambda *_: ranks.kill_all())
    ranks.start()
    store = None if run.record.fresh else _serve_store(listener)  # after the fork: it has a thread
    ending = watch(run, ranks, events)
    ranks.sweep()
    del store
    events.emit(Ended, ending=ending.kind, detail=ending.detail)


def watch(run: Run, ranks: Ranks, events: EventWriter) -> Ending:
    """Wait until every rank is gone; end them all as soon as there is a reason to."""
    deadline = run.record.created + run.record.timeout if run.record.timeout else None
    ending = Ending(ranks, run.folder)
    while ranks.alive():
        for rank, code in ranks.poll():
            events.emit(Exited, of_rank=rank, code=code, asked=ending.begun)
            if code != 0:
                ending.begin("failed")
        if (reason := _asked_to_stop(run.folder)) is not None:
            ending.begin("stopped", force=reason == "force")
        if deadline is not None and time.time() > deadline:
            ending.begin("timeout", detail=f"longer than {run.record.timeout:g} s")
        ending.advance()
        time.sleep(POLL)
    return ending


def _asked_to_stop(folder: Path) -> str | None:
    try:
        return (folder / STOP_FILE).read_text()
    except FileNotFoundError:
        return None


def _enter(record: RunRecord, environment: dict[str, str]) -> None:
    """Take on the kernel's surroundings as they are now: environment, folder, module path."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(record.cwd)
    sys.path[:] = record.sys_path


def _redirect(log: Path) -> None:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(fd, target)
    os.close(fd)


def _serve_store(listener: socket.socket) -> object:
    """Serve the ranks' rendezvous on a socket that is bound to the loopback alone."""
    from torch.distributed import TCPStore

    port = listener.getsockname()[1]
    return TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(minutes=30),
        master_listen_fd=listener.detach(),
    )


__all__ = ["RunEnding", "launch", "watch"]
