"""``python -m nbmgpu.engines.ray.head``: the head of a run, and its driver in the cluster.

It prints what the cluster has as one line of JSON, again for each empty line of its input, and runs
what a line with a ``HeadRequest`` describes.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group

from nbmgpu.engines.local.launcher import redirect_output
from nbmgpu.engines.multi_node.head import run_head
from nbmgpu.engines.restart import start_again
from nbmgpu.formatting import format_count
from nbmgpu.options.engine_options import recorded_engine_values
from nbmgpu.rank.command_line import restore_variables
from nbmgpu.rank.store.store_address import StoreAddress
from nbmgpu.runs.folder import write_atomically
from nbmgpu.runs.run import Run

from .cluster import WAITING_FILE, Cluster, HeadRequest
from .cluster_options import ClusterOptions
from .nodes import NodeStart, RayNodes
from .refusal import CLIENT
from .shared_folder import blind_nodes

IDLE_LIMIT = 300.0
"""Seconds that it waits for a run."""

CONNECT_TIMEOUT = 10.0
"""Seconds."""

ANSWER_TIMEOUT = 5.0
"""Seconds in which the cluster must say what it has; later it is lost, and so is this process."""

CLIENT_NOT_STARTED = "Starting Ray client server failed"
"""What Ray says if the head node has no process for a ``ray://`` client within 30 s."""


def main() -> None:
    """Connect, and run the run that the kernel asks for."""
    parser = argparse.ArgumentParser(prog="python -m nbmgpu.engines.ray.head")
    parser.add_argument("--address", default="", help="of the cluster")
    parser.add_argument("--folder", default="", help="say which nodes do not see it")
    given = parser.parse_args()
    dashboard = connect(given.address)
    request = wait_for_request(lambda: cluster_now(dashboard, given.folder))
    if request is not None:
        redirect_output(Path(request.folder))
        run_on_cluster(request, given.address)


def wait_for_request(look: Callable[[], Cluster]) -> HeadRequest | None:
    """Say what the cluster has, as ``look`` returns it, whenever the kernel asks.

    Returns:
        The run that the kernel asks for; None if it does not for a while, or has ended.
    """
    while True:
        print(json.dumps(dataclasses.asdict(look())), flush=True)
        if not select.select([sys.stdin], [], [], IDLE_LIMIT)[0]:
            return None
        line = sys.stdin.readline()
        if not line:
            return None
        if line.strip():
            return HeadRequest(**json.loads(line))


def connect(address: str) -> str:
    """Connect this process to the cluster, and return the address of its dashboard, or "".

    Raises:
        OSError: nothing listens there; Ray would try for minutes.
    """
    known = address or os.environ.get("RAY_ADDRESS", "")
    host, _, port = known.removeprefix(CLIENT).rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
    return _init(address).dashboard_url or ""


def cluster_now(dashboard: str, folder: str = "") -> Cluster:
    """Return what the cluster has now; end this process if it does not answer.

    Args:
        dashboard: address of its dashboard.
        folder: see ``blind_nodes``; empty if it does not matter which nodes see it.
    """
    lost = threading.Timer(ANSWER_TIMEOUT, os._exit, (1,))  # Ray would try for a minute
    lost.start()
    nodes = [node for node in ray.nodes() if node["Alive"]]
    lost.cancel()
    gpus = tuple(int(node["Resources"].get("GPU", 0)) for node in nodes)
    with_cores = [node for node in nodes if node["Resources"].get("CPU")]
    blind = blind_nodes(with_cores, folder) if folder else ()
    return Cluster(gpus, dashboard, len(with_cores), blind)


def _init(address: str, attempts: int = 3) -> Any:
    """Connect, and try again if a busy head node has not started its part of a client in time."""
    try:
        return ray.init(address or None, log_to_driver=False, logging_level="ERROR")
    except ConnectionAbortedError as error:
        if CLIENT_NOT_STARTED not in str(error) or attempts == 1:
            raise
        ray.shutdown()
        return _init(address, attempts - 1)


def run_on_cluster(request: HeadRequest, address: str) -> None:
    """Run a run from start to end."""
    run = Run(Path(request.folder))
    options = ClusterOptions.of(recorded_engine_values(run.record.options.values))
    group = reserve(run, options)
    host = own_address(address)

    def start_nodes(port: int) -> RayNodes:
        start = NodeStart(StoreAddress(host=host, port=port), options.python, request)
        return RayNodes(run, group, start)

    run_head(run.folder, start_nodes)
    restore_variables(request.restored)
    start_again(Run(run.folder))


def reserve(run: Run, options: ClusterOptions) -> PlacementGroup:
    """Return a placement group with a bundle per node, once the cluster has room for it."""
    record = run.record
    gpus = sum(device != "cpu" for device in record.devices[: record.ranks_per_node])
    cores = record.ranks_per_node * record.threads
    bundle = {"CPU": float(cores)}
    if gpus:
        bundle["GPU"] = float(gpus)
    if options.memory:
        bundle["memory"] = float(options.memory)
    if options.accelerator_type:
        bundle[f"accelerator_type:{options.accelerator_type}"] = 0.001
    group = placement_group([bundle] * record.nodes, "STRICT_SPREAD", name=f"nbmgpu-{run.id}")
    waiting = run.folder / WAITING_FILE
    what = format_count(gpus, "free GPU") if gpus else format_count(cores, "free core")
    while not group.wait(1):
        free = ray.available_resources()
        text = (
            f"Ray has no {format_count(record.nodes, 'node')} with {what} each yet; free in all: "
            f"{format_count(int(free.get('CPU', 0)), 'core')}, "
            f"{format_count(int(free.get('GPU', 0)), 'GPU')}"
        )
        write_atomically(waiting, text)
    waiting.unlink(missing_ok=True)
    return group


def own_address(address: str) -> str:
    """Return the address at which nodes reach this machine."""
    if not address.startswith(CLIENT):
        return str(ray.util.get_node_ip_address())
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


if __name__ == "__main__":
    main()
