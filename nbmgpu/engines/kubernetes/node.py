"""``python -m nbmgpu.engines.kubernetes.node``: what each pod of a TrainJob runs.

The first pod is the head of the run, which waits for the others.  Each pod starts a node launcher.
A pod is started again when it has failed; it does nothing then, as its ranks are lost.  So it ends
without an error wherever the run folder says what has happened.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmgpu.engines.multi_node import LEAVING, NODES
from nbmgpu.engines.multi_node.head import run_head
from nbmgpu.engines.multi_node.launch_file import LaunchFile
from nbmgpu.engines.supervision import stop_request
from nbmgpu.rank.store.store_address import KEY_VARIABLE, StoreAddress
from nbmgpu.rank.store.store_client import StoreClient
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import LAUNCHER, Ended
from nbmgpu.runs.folder import write_atomically
from nbmgpu.runs.run import Run

from .node_files import (
    FAILED,
    HEAD_FILE,
    VARIABLES_FILE,
    failed_nodes,
    node_logs,
    read_variables,
)
from .train_job import NODE_NAME, POD_NAME

BEGUN = Path("/dev/shm/nbmgpu-begun")
"""Is there in a container that is started again in the same pod, which has kept that memory."""

POLL = 0.2
"""Seconds between two looks at other pods."""

REACH_TIMEOUT = 60.0
"""Seconds in which a pod reaches the head once that listens: its name has to spread."""

KERNEL_TIMEOUT = 20.0
"""Seconds in which a kernel that follows the run says why it has lost its head."""

NO_HEAD = (
    "Pod {pod} cannot reach {head}, the first pod of the job: {error}. A NetworkPolicy may forbid "
    "it: pods of the job must reach each other at all ports"
)
BEGUN_AGAIN = "The container of pod {pod} has ended before the run had started"
HEAD_LOST = (
    "The first pod of the job, which is the head of the run, was lost: evicted, out of memory, or "
    "its node is gone."
)


@dataclass(frozen=True)
class Pod:
    """This pod.

    Attributes:
        number: among those of the job, from 0.
        name: as the API knows it.
        node: name of its machine.
        head: address of the store in the first pod.
        folder: the run folder.
        restored: as of ``restore_variables``.
    """

    number: int
    name: str
    node: str
    head: StoreAddress
    folder: Path
    restored: str

    def start_launcher(self) -> subprocess.Popen[bytes]:
        """Start the launcher of this pod's ranks."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "nbmgpu.engines.multi_node.node_launcher"),
                *(str(self.folder), f"--node-rank={self.number}", f"--node-name={self.node}"),
                f"--head={self.head}",
                f"--restore-variables={self.restored}",
            ],
            stdin=subprocess.DEVNULL,
        )

    def fail(self, why: str = "") -> None:
        """Tell the others that there will be no ranks here."""
        if why:
            print(why, flush=True)
        (self.folder / FAILED.format(self.number)).touch()


def main() -> None:
    """Run the part of this pod in the run that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m nbmgpu.engines.kubernetes.node")
    parser.add_argument("folder", type=Path, help="the run folder")
    parser.add_argument("--restore-variables", default="{}", help="as of nbmgpu.rank")
    given = parser.parse_args()
    pod = Pod(
        int(os.environ["JOB_COMPLETION_INDEX"]),
        os.environ.pop(POD_NAME),
        os.environ.pop(NODE_NAME),
        StoreAddress(host=os.environ["PET_MASTER_ADDR"], port=int(os.environ["PET_MASTER_PORT"])),
        given.folder,
        given.restore_variables,
    )
    # Kubeflow's variables describe one process per pod; Lightning would take it for the only rank.
    for name in [name for name in os.environ if name.startswith("PET_")] + ["KUBERNETES_PORT"]:
        os.environ.pop(name, None)
    for name, value in read_variables(pod.folder).items():
        os.environ.setdefault(name, value)
    run = Run(pod.folder, ranks=0)
    run.refresh()
    if run.view.launcher is not None or run.view.ended is not None:
        if pod.number == 0:
            report_lost_head(run)
    elif BEGUN.exists():
        pod.fail(BEGUN_AGAIN.format(pod=pod.name))
    elif pod.number == 0:
        BEGUN.touch()
        run_head(pod.folder, lambda _: PodNodes(pod, run.record.nodes), pod.head.port)
    else:
        BEGUN.touch()
        follow_head(pod)


def report_lost_head(run: Run) -> None:
    """End a run whose head was in the container before this one, unless a kernel does so."""
    deadline = time.monotonic() + KERNEL_TIMEOUT
    while run.view.ended is None:
        if time.monotonic() > deadline:
            events = EventWriter(run.events_path("launcher"), LAUNCHER)
            events.emit(Ended, ending="failed", detail=HEAD_LOST)
            events.close()
            return
        time.sleep(POLL)
        run.refresh()


def follow_head(pod: Pod) -> None:
    """Run ranks for the head in another pod."""
    if error := unreachable(pod):
        pod.fail(NO_HEAD.format(pod=pod.name, head=pod.head, error=error))
        return
    os.environ[KEY_VARIABLE] = LaunchFile.read(pod.folder).key
    store = StoreClient(pod.head)

    def tell_head(*_: object) -> None:
        with suppress(OSError):  # it has ended
            store.append(LEAVING, f"{pod.node}\n")

    signal.signal(signal.SIGTERM, tell_head)
    if pod.start_launcher().wait():
        pod.fail()


def unreachable(pod: Pod) -> str:
    """Wait for the head, which may be in a queue; return why it cannot be reached, or nothing."""
    deadline = None
    while True:
        try:
            socket.create_connection((pod.head.host, pod.head.port), 5).close()
            return ""
        except OSError as error:
            if deadline is None and (pod.folder / HEAD_FILE).exists():
                deadline = time.monotonic() + REACH_TIMEOUT
            if deadline is not None and time.monotonic() > deadline:
                return str(error)
        time.sleep(POLL)


class PodNodes:
    """All pods of a run, as the first one sees them; a ``NodeProcesses``."""

    def __init__(self, pod: Pod, nodes: int) -> None:
        """Start the launcher of the first pod; wait until there are ``nodes``, or never will be."""
        self._folder, self._nodes = pod.folder, nodes
        self._store = StoreClient(StoreAddress(host="127.0.0.1", port=pod.head.port))
        write_atomically(pod.folder / HEAD_FILE, pod.name)
        if error := unreachable(pod):
            pod.fail(NO_HEAD.format(pod=pod.name, head=pod.head, error=error))
        self._launcher = pod.start_launcher()
        self._wait()
        (pod.folder / VARIABLES_FILE).unlink(missing_ok=True)

    def _wait(self) -> None:
        """Wait until all nodes have joined, one cannot, or the run is to end."""
        former = signal.getsignal(signal.SIGTERM)
        assert callable(former)
        signalled = threading.Event()

        def handle(*given: Any) -> None:
            signalled.set()
            former(*given)

        signal.signal(signal.SIGTERM, handle)
        self._store.append(NODES, "")
        while len(self._store.get(NODES).splitlines()) < self._nodes:
            if signalled.is_set() or self.failed or stop_request(self._folder) is not None:
                return
            time.sleep(POLL)

    @property
    def ended(self) -> bool:
        """Whether no launcher is left, as far as this pod knows."""
        others = {*failed_nodes(self._folder)} - {0}
        return self._launcher.poll() is not None and len(others) == self._nodes - 1

    @property
    def failed(self) -> bool:
        """Whether one of them has ended with an error, or could not start."""
        return bool(self._launcher.poll() or failed_nodes(self._folder))

    @property
    def lost(self) -> str:
        """Nothing: the engine asks the cluster."""
        return ""

    def why_ended(self) -> str:
        """Nothing: the engine asks the cluster."""
        return ""

    def output(self) -> str:
        """Return what they have printed last."""
        return node_logs(self._folder)

    def have_copied(self, since: float) -> bool:
        """Return True: nodes write into the run folder itself."""
        return True

    def end(self, at_once: bool = False) -> None:
        """End the launcher of this pod; the others end when the head is gone."""
        try:
            self._launcher.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait(timeout=10)


if __name__ == "__main__":
    main()
