"""The head of a run: serves its store, supervises its ranks, writes ``events/launcher.jsonl``."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nbmgpu.engines.final_checkpoint import FinalCheckpoint
from nbmgpu.engines.store_server import StoreServer
from nbmgpu.engines.supervision import stop_request, supervise
from nbmgpu.engines.termination import Termination
from nbmgpu.rank.store.store_address import KEY_VARIABLE, StoreAddress
from nbmgpu.rank.store.store_client import StoreClient
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended, Notice, Started
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import NODE_LOST
from nbmgpu.system.processes import own_process

from . import FORCE_STOP, LEAVING, STOP
from .launch_file import LaunchFile
from .node_processes import NodeProcesses
from .remote_ranks import RemoteRanks
from .socket_folder import remove_abandoned

SIGNALS = (STOP, FORCE_STOP, signal.SIGTERM)

ENDED_BY_SCHEDULER = (
    "The scheduler has ended the job: its time limit, preemption, or a cancellation."
)


def run_head(folder: Path, start_nodes: Callable[[int], NodeProcesses], port: int = 0) -> None:
    """Run a run from start to end.

    Args:
        folder: the run folder.
        start_nodes: starts one node launcher per node, given the port of the store.  Until it
            returns, the run counts as queued.
        port: of the store; 0 for one that is free.
    """
    run = Run(folder)
    early: list[int] = []
    for sig in SIGNALS:
        signal.signal(sig, lambda number, _: early.append(number))
    os.environ[KEY_VARIABLE] = key = LaunchFile.read(folder).key
    server = StoreServer.on_port("", bytes.fromhex(key), port)
    server.start()
    store = StoreClient(StoreAddress(host="127.0.0.1", port=server.address.port))
    nodes = start_nodes(server.address.port)
    events = EventWriter(run.events_path("launcher"), LAUNCHER)
    events.emit(Started, **own_process())
    ranks = RemoteRanks(run, nodes, store)
    termination = Termination(ranks, folder, FinalCheckpoint(run, events))
    _handle_signals(run, termination)
    threading.Thread(target=_end_with_nodes, args=(store,), daemon=True).start()
    try:
        for number in early:
            os.kill(os.getpid(), number)
        if stop_request(folder) is not None:  # while the job was in the queue
            termination.start("stopped", force=True)
        supervise(run, ranks, events, termination)
    except Exception as error:
        termination.start("failed", f"The head of the run has failed: {error!r}")
        raise
    finally:
        detail = termination.detail
        if detail == ENDED_BY_SCHEDULER:
            detail = nodes.why_ended() or detail
        if nodes.lost:
            detail = detail and f"{nodes.lost}."  # it is why the scheduler ends the job
        if lost := nodes.lost or (not detail and ranks.lost):
            events.emit(Notice, topic=NODE_LOST, text=lost)
        events.emit(Ended, ending=termination.ending, detail=detail)
        events.close()
        nodes.end(at_once=bool(lost))
        remove_abandoned()


def _end_with_nodes(store: StoreClient) -> None:
    """End the run when the scheduler asks a node to end, and not the head.

    Slurm does that when it preempts a job, Kubernetes when it ends another pod.
    """
    with suppress(OSError):  # the run has ended
        store.get(LEAVING)
        os.kill(os.getpid(), signal.SIGTERM)


def _handle_signals(run: Run, termination: Termination) -> None:
    """Start to end the run when the engine or the scheduler signals the head."""

    def handle(sig: int, _: object) -> None:
        if sig in (STOP, FORCE_STOP):
            termination.start("stopped", force=sig == FORCE_STOP)
        elif stop_request(run.folder) is None:
            termination.end_soon(ENDED_BY_SCHEDULER)
        else:
            termination.start("stopped", ENDED_BY_SCHEDULER)

    for sig in SIGNALS:
        signal.signal(sig, handle)
