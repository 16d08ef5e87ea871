"""From the request to the first all_reduce on two nodes that this machine plays, by engine."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.measure import BY_HAND, Failed, Figure, Result

from .nodes import CLUSTERS

RANKS_PER_NODE = (1, 2)
OURS = "nbmgpu"
PAUSE = 2.0
"""Seconds between two launches, in which processes of the last one end."""

CELL = """
import time, torch, torch.distributed as dist
x = torch.ones(4)
dist.all_reduce(x)
first = time.time()
"""
TORCHRUN = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(4)
dist.all_reduce(x)
if dist.get_rank() == 0:
    open(sys.argv[1], "w").write(str(time.time()))
dist.destroy_process_group()
"""
JOB = """#!/bin/bash
srun bash -c '{python} -m torch.distributed.run --nnodes 2 --node-rank $SLURM_NODEID \\
  --nproc-per-node {ranks} --master-addr 127.0.0.1 --master-port {port} {script} {stamp}'
"""
ACTORS = """
import os, socket, sys, time
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

@ray.remote(num_cpus=1)
class Rank:
    def address(self):
        with socket.socket() as probe:
            probe.bind(("", 0))
            return ray.util.get_node_ip_address(), probe.getsockname()[1]

    def run(self, rank, world_size, host, port):
        import torch, torch.distributed as dist
        address = f"tcp://{host}:{port}"
        dist.init_process_group("gloo", address, rank=rank, world_size=world_size)
        x = torch.ones(4)
        dist.all_reduce(x)
        first = time.time()
        dist.destroy_process_group()
        return first

ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
ranks = int(sys.argv[2])
group = placement_group([{"CPU": ranks}] * 2, strategy="STRICT_SPREAD")
ray.get(group.ready())
places = [PlacementGroupSchedulingStrategy(group, i // ranks) for i in range(2 * ranks)]
actors = [Rank.options(scheduling_strategy=place).remote() for place in places]
address = ray.get(actors[0].address.remote())
firsts = [actor.run.remote(i, len(actors), *address) for i, actor in enumerate(actors)]
print(max(ray.get(firsts)))
"""


def workload(engine: str, ranks: int) -> str:
    """Return the title of a table."""
    return f"{engine}: first all_reduce on 2 nodes with {ranks} rank{'s' * (ranks > 1)} each"


WORKLOADS = [workload(engine, ranks) for engine in ("slurm", "ray") for ranks in RANKS_PER_NODE]


def measure(rounds: int) -> list[Result]:
    """Measure launches of nbmgpu and of scripts by hand, in turn."""
    results: list[Result] = []
    for engine, cluster in (("slurm", slurm_by_hand), ("ray", ray_by_hand)):
        with cluster() as (problem, by_hand):
            if problem:
                results.append(Failed(workload(engine, 1), OURS, problem))
                continue
            for ranks in RANKS_PER_NODE:
                results += _measure(engine, ranks, by_hand, rounds)
    return results


def _measure(
    engine: str, ranks: int, by_hand: Callable[[int], float], rounds: int
) -> Iterator[Result]:
    ways = {OURS: lambda: _launch(engine, ranks), BY_HAND: lambda: by_hand(ranks)}
    for number in range(rounds + 1):  # no first launch is warm
        for way, launch in ways.items():
            begun = time.time()
            seconds = launch() - begun
            if number:
                yield Figure(workload(engine, ranks), way, seconds)
            time.sleep(PAUSE)


def _launch(engine: str, ranks: int) -> float:
    """Run a cell; return the time after its first all_reduce."""
    import nbmgpu

    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()):
        nbmgpu.run(CELL, names, engine=engine, nodes=2, gpus=ranks, cpu=True, strategy="none")
    return float(names["first"])


@contextmanager
def slurm_by_hand() -> Iterator[tuple[str, Callable[[int], float]]]:
    """Start Slurm; yield why it cannot, and ``sbatch`` and ``srun`` of a ``torchrun`` script."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        slurm_cluster = _fixtures("slurm_cluster")
        if missing := slurm_cluster.missing_program():
            yield f"{missing} is not installed", float
            return
        cluster = slurm_cluster.SlurmCluster(folder)
        stack.callback(cluster.stop)
        stack.enter_context(_variables({"SLURM_CONF": str(cluster.config)}))
        script = folder / "script.py"
        script.write_text(TORCHRUN)

        def by_hand(ranks: int) -> float:
            stamp, job = folder / "stamp", folder / "job.sh"
            values = {"python": sys.executable, "script": script, "stamp": stamp}
            job.write_text(JOB.format(ranks=ranks, port=_free_port(), **values))
            command = ["sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1"]
            subprocess.run(
                [*command, f"--cpus-per-task={ranks}", f"--output={folder}/job.log", str(job)],
                check=True, capture_output=True, cwd=folder,
            )  # fmt: skip
            return float(stamp.read_text())

        yield "", by_hand


@contextmanager
def ray_by_hand() -> Iterator[tuple[str, Callable[[int], float]]]:
    """Start Ray; yield why it cannot, and a script that starts an actor per rank."""
    import pytest

    with ExitStack() as stack:
        try:
            running = _fixtures("ray_cluster").started_ray({"node1": None, "node2": None})
            cluster = stack.enter_context(running)
        except pytest.skip.Exception as error:
            yield str(error), float
            return

        def by_hand(ranks: int) -> float:
            command = [sys.executable, "-c", ACTORS, cluster.address, str(ranks)]
            return float(subprocess.run(command, check=True, capture_output=True).stdout)

        yield "", by_hand


def _fixtures(name: str) -> Any:
    """Import a module of the tests of engines."""
    sys.path.append(str(CLUSTERS))
    try:
        return __import__(name)
    finally:
        sys.path.remove(str(CLUSTERS))


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
