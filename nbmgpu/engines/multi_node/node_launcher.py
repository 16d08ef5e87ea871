"""``python -m nbmgpu.engines.multi_node.node_launcher``: forks the ranks of one node.

It ends with its ranks, and ends them when the head is gone.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from nbmgpu.engines.local.cleanup import ForkedPids, clean_up
from nbmgpu.engines.local.fork_server import REQUIRED_MODULES, import_missing
from nbmgpu.engines.local.processes import ForkedRanks
from nbmgpu.environment import packages
from nbmgpu.rank.command_line import restore_variables
from nbmgpu.rank.store.exit_reports import EXITS, announce_loss
from nbmgpu.rank.store.store_address import KEY_VARIABLE, StoreAddress
from nbmgpu.rank.store.store_client import StoreClient
from nbmgpu.runs.run import Run
from nbmgpu.system.parent_death import adopt_orphans
from nbmgpu.system.signals import leave_to_head

from . import LEAVING, NODES, PROBLEMS, SIGNAL
from .launch_file import LaunchFile
from .socket_folder import socket_folder
from .versions import Versions

POLL = 0.02
"""Seconds between two polls of the ranks."""

NO_FOLDER = (
    "Node {node} does not see {folder}. Set NBMGPU_RUNS in the notebook to a folder that all nodes "
    "share."
)
NO_CWD = (
    "Node {node} does not see the notebook's folder {folder}. Run the notebook from a folder that "
    "all nodes share."
)
OTHER_VERSIONS = (
    "Node {node} has {differences}. Install the notebook's versions there{command}, or choose its "
    "Python: --engine-option python=/path/to/python"
)
NO_HEAD = (
    "Node {node} cannot reach {head}, the first node of the job: {error}. Open that network, or "
    "choose another one: --engine-option interface=eth0"
)
NO_INTERFACE = (
    "Node {node} has no network interface {name!r} with an IP address. It has: {found}. Choose one "
    "of them, or leave interface= out"
)


@dataclass(frozen=True)
class Node:
    """A node of the job.

    Attributes:
        rank: its number, from 0.
        head: address of the store at the head.
        name: its host name.
    """

    rank: int
    head: StoreAddress
    name: str


def main() -> None:
    """Run the ranks of the node that the command line describes."""
    parser = argparse.ArgumentParser(prog="python -m nbmgpu.engines.multi_node.node_launcher")
    parser.add_argument("folder", type=Path, help="the run folder")
    parser.add_argument("--node-rank", type=int, required=True)
    parser.add_argument("--node-name", default=socket.gethostname())
    parser.add_argument("--head", required=True, metavar="HOST:PORT", help="the store of the run")
    parser.add_argument("--restore-variables", default="{}", help="as of nbmgpu.rank")
    given = parser.parse_args()
    restore_variables(given.restore_variables)
    host, _, port = given.head.rpartition(":")
    node = Node(given.node_rank, StoreAddress(host=host, port=int(port)), given.node_name)
    if not given.folder.is_dir():
        sys.exit(NO_FOLDER.format(node=node.name, folder=given.folder))
    signal.signal(signal.SIGTERM, leave_to_head)  # ranks, which inherit it, do so to their end
    signal.signal(signal.SIGINT, lambda *_: None)  # ranks are interrupted, this process is not
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray blocks SIGINT; ranks would, too
    launch = LaunchFile.read(given.folder)
    os.environ[KEY_VARIABLE] = launch.key
    store = StoreClient(node.head)
    try:
        store.append(NODES, f"{node.name}\n")
    except OSError as error:
        sys.exit(NO_HEAD.format(node=node.name, head=host, error=error))
    run = Run(given.folder)
    if problem := _problem(run, launch, node):
        store.append(PROBLEMS, f"{problem}\n")
        sys.exit(problem)
    run_node(run, node, launch, store)


def _problem(run: Run, launch: LaunchFile, node: Node) -> str:
    """Return why this node cannot run ranks; empty if it can."""
    found = launch.versions.differences(Versions.of_this_process())
    found += packages.differences(run.record.packages)
    if found:
        # A clone of nbmgpu that is not installed has no version.
        wanted = [f"{d.name}=={d.wanted}" for d in found if d.wanted and d.name != "python"]
        command = f" ({sys.executable} -m pip install {' '.join(wanted)})" if wanted else ""
        told = ", ".join(map(str, found))
        return OTHER_VERSIONS.format(node=node.name, differences=told, command=command)
    if not os.path.isdir(run.record.kernel.cwd):
        return NO_CWD.format(node=node.name, folder=run.record.kernel.cwd)
    return _missing_interface(launch.interface, node.name)


def _missing_interface(interfaces: str, node: str) -> str:
    """Return which of ``interfaces``, separated by commas, this machine does not have."""
    known = psutil.net_if_addrs().items()
    ip = {socket.AF_INET, socket.AF_INET6}
    found = [name for name, addresses in known if ip & {each.family for each in addresses}]
    for name in filter(None, interfaces.split(",")):
        if name not in found:
            return NO_INTERFACE.format(node=node, name=name, found=", ".join(sorted(found)))
    return ""


def run_node(run: Run, node: Node, launch: LaunchFile, store: StoreClient) -> None:
    """Fork the ranks of a node, and supervise them until the last has ended."""
    adopt_orphans()
    os.chdir(run.record.kernel.cwd)
    # Python's own folders may be elsewhere on this node.
    sys.path[:] = dict.fromkeys([*run.record.kernel.search_path(), *sys.path])
    os.environ.update(MASTER_ADDR=node.head.host, MASTER_PORT=str(node.head.port))
    import_missing(REQUIRED_MODULES)
    forked = ForkedPids()
    ranks = ForkedRanks(run, node.rank, node.name, launch.interface or interface_to(node.head))
    pids: list[int] = []
    with socket_folder() as sockets:
        try:
            ranks.start(sockets, node.head.init_method())
            pids += ranks.pids
            _supervise(ranks, store, node.name)
        finally:
            ranks.signal(signal.SIGKILL)
            clean_up(pids, forked, run.record.created)


def _supervise(ranks: ForkedRanks, store: StoreClient, node: str) -> None:
    """Report the ends of ranks, and signal them as the head asks; return when none is left."""
    # When this process is killed, the system ends its ranks.
    announce_loss(store, node, ranks.numbers)
    ended: list[int] = []  # by the scheduler, which may ask this process and not the head
    signal.signal(signal.SIGTERM, lambda number, _: ended.append(number))
    signals: queue.Queue[tuple[int, bool] | None] = queue.Queue()
    threading.Thread(target=_receive_signals, args=(store, signals), daemon=True).start()
    while ranks.alive():
        with suppress(queue.Empty):
            asked = signals.get(timeout=POLL)
            if asked is None:
                return  # the head is gone
            ranks.signal(signal.Signals(asked[0]), others=asked[1])
        if ended:
            ended.clear()
            store.append(LEAVING, f"{node}\n")
        for rank, code in ranks.poll():
            store.append(EXITS, f"{rank} {code}\n")


def _receive_signals(store: StoreClient, signals: queue.Queue[tuple[int, bool] | None]) -> None:
    """Put each signal of the head into ``signals``, and None when the head is gone."""
    number = 0
    while True:
        key = SIGNAL.format(number)
        try:
            sig, others = map(int, store.get(key).split())
        except OSError:
            signals.put(None)
            return
        signals.put((sig, bool(others)))
        number += 1


def interface_to(head: StoreAddress) -> str:
    """Return the name of the interface that leads to ``head``; empty if it is not known."""
    with suppress(OSError), socket.create_connection((head.host, head.port), 10) as connection:
        own = connection.getsockname()[0]
        for name, addresses in psutil.net_if_addrs().items():
            if any(address.address == own for address in addresses):
                return name
    return ""


if __name__ == "__main__":
    main()
