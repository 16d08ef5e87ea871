"""Runs on a real Ray cluster: its queue, its nodes, and nodes that see no file of the notebook."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from idioms.comparison import assert_equal, compare_whole_batches
from idioms.tables import BY_NAME
from idioms.whole_batch import CELLS
from ray_cluster import RayCluster, started_ray
from several_nodes import WAIT, children, started, stopped_in_queue, wait, wait_for_the_end

import nbmgpu
from nbmgpu.engines.ray.cluster_options import ClusterOptions
from nbmgpu.errors import LaunchError, OptionError, RankKilledError
from nbmgpu.runs.run import Run

matrix = pytest.mark.matrix("nbmgpu/engines")

ON_TWO_NODES: dict[str, Any] = {"engine": "ray", "nodes": 2, "gpus": 2, "cpu": True}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """Start two nodes that do not see the files of tests."""
    hidden = tmp_path_factory.getbasetemp()
    with started_ray({"apart1": hidden, "apart2": hidden}) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def folders(cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep runs and notebook in folders that nodes do not see."""
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    (tmp_path / "notebook").mkdir()
    monkeypatch.chdir(tmp_path / "notebook")
    monkeypatch.syspath_prepend(str(tmp_path / "notebook"))
    before = children()
    yield
    wait_for_the_end(before)
    wait(lambda: not list(Path(tempfile.gettempdir()).glob("nbmgpu-copy-*")), 30)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=matrix)])
def test_the_numbers_are_those_of_one_device(strategy: str) -> None:
    result = assert_equal(BY_NAME["AdamW"], strategy=strategy, **ON_TWO_NODES)
    assert {view.host for view in result.run.view.ranks} == {"apart1", "apart2"}


def test_this_machine_need_not_be_a_node(cluster: RayCluster) -> None:
    option = (f"address={cluster.client_address}",)
    result = assert_equal(BY_NAME["AdamW"], engine_option=option, **ON_TWO_NODES)
    assert {view.host for view in result.run.view.ranks} == {"apart1", "apart2"}


def test_results_logs_and_curves_come_from_a_node_that_sees_no_files() -> None:
    Path("beside.py").write_text("VALUE = 17\n")
    namespace = {"__name__": "__main__", "model": torch.nn.Linear(1, 1), "nbmgpu": nbmgpu}
    namespace["data"] = torch.arange(9 * 2**20)  # more than travels at once
    cell = """
import os, sys, socket, torch
import beside
rank = int(os.environ["RANK"])
print(f"rank {rank} on {socket.gethostname()} has {beside.VALUE}")
nbmgpu.log(value=rank)
model.weight.data.fill_(float(rank))
data += 1
"""
    run = nbmgpu.run(cell, namespace, strategy="none", **ON_TWO_NODES)
    assert run is not None
    assert torch.equal(namespace["data"], torch.arange(1, 9 * 2**20 + 1))
    for rank, view in enumerate(run.view.ranks):
        assert run.log(rank).endswith(f"rank {rank} on {view.host} has 17\n")
        assert run.results[rank]["rank"] == rank
        assert view.state == "finished"


def test_traces_come_from_nodes_that_see_no_files() -> None:
    cell = """
import torch
model, data = torch.nn.Linear(4, 1), torch.ones(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(data).mean().backward()
    optimizer.step()
"""
    names: dict[str, Any] = {"__name__": "__main__"}
    run = nbmgpu.run(cell, names, strategy="none", profile="2-3", **ON_TWO_NODES)
    assert run is not None
    assert [(row.rank, row.steps) for row in run.profile.rows] == [(n, "2-3") for n in range(4)]
    for row in run.profile.rows:
        assert Path(row.trace).parent == run.folder
        content = gzip.decompress(Path(row.trace).read_bytes())
        assert len(Path(row.trace).read_bytes()) == row.nbytes
        assert b"ProfilerStep#3" in content


def test_stop_writes_partial_results_back() -> None:
    namespace = {"__name__": "__main__", "model": torch.nn.Linear(1, 1)}
    run = started("ray", "import torch\nmodel.weight.data.fill_(7)\n" + WAIT, namespace)
    Run(run.folder).stop()  # as another process does
    with pytest.raises(KeyboardInterrupt, match="back in the notebook"):
        nbmgpu.attach(run.id)
    assert namespace["model"].weight.item() == 7


def test_an_error_on_a_node_that_sees_no_files_names_it_and_the_line() -> None:
    cell = (
        "import socket\nif socket.gethostname() == 'apart2':\n    raise KeyError('here')\n" + WAIT
    )
    with pytest.raises(KeyError, match="here") as caught:
        nbmgpu.run(cell + WAIT, {"__name__": "__main__"}, **ON_TWO_NODES)
    assert "on apart2 raised KeyError, line 3 of the cell" in str(caught.value.__cause__)


def test_a_run_after_a_dry_run() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    nbmgpu.run("value = 1", names, dry_run=True, **ON_TWO_NODES)
    nbmgpu.run("value = 2", names, **ON_TWO_NODES)
    assert names["value"] == 2


def test_the_head_of_the_next_run_connects_in_advance(cluster: RayCluster) -> None:
    def head_of(**options: Any) -> int:
        run = nbmgpu.run("1", {"__name__": "__main__"}, **ON_TWO_NODES | {"gpus": 1} | options)
        assert run is not None
        assert run.view.launcher is not None
        return run.view.launcher.pid

    def waiting() -> list[int]:
        return [int(line.split()[0]) for line in children() if "ray.head" in line]

    for pid in waiting():  # of another test, or of a first attempt at this one
        os.kill(pid, 9)
    first = head_of()
    wait(lambda: len(waiting()) == 1)
    (second,) = waiting()
    assert second != first
    cluster.add("later")  # a head that has connected before sees it, too
    try:
        assert head_of(nodes=3) == second
    finally:
        cluster.remove("later")
    wait(lambda: len(waiting()) == 1)
    os.kill(*waiting(), 9)
    assert head_of() not in (first, second)


@matrix
def test_a_cell_with_dropout_starts_again_with_whole_batches() -> None:
    cell = next(each for each in CELLS if each.name == "dropout")
    result = compare_whole_batches(cell, exact="auto", **ON_TWO_NODES)
    result.assert_equal()
    assert "restarted" in result.run.view.notices


KERNEL = """
import time
import nbmgpu
from nbmgpu.serialization import container
container.write = lambda *_, **__: time.sleep(100)  # as of many gigabytes
nbmgpu.run("1", {"__name__": "__main__"}, engine="ray", gpus=1, cpu=True)
"""


@matrix
def test_a_kernel_that_is_killed_before_it_has_sent_all_data_fails_the_run(tmp_path: Path) -> None:
    kernel = subprocess.Popen([sys.executable, "-c", KERNEL])
    wait(lambda: [*tmp_path.glob("runs/*/events/launcher.jsonl")])
    kernel.kill()
    kernel.wait()
    (folder,) = tmp_path.glob("runs/*")
    reader = Run(folder)

    def ended() -> bool:
        reader.refresh()
        return reader.over

    wait(ended)
    assert reader.view.ended is not None
    assert "The kernel has ended" in reader.view.ended.detail


@pytest.mark.parametrize("by_client", [False, True], ids=["as a node", "by a client"])
def test_checkpoints_need_a_folder_that_all_nodes_share(
    by_client: bool, cluster: RayCluster, tmp_path: Path
) -> None:
    option = (f"address={cluster.client_address}",) if by_client else ()
    with pytest.raises(LaunchError, match=r"do not: apart., apart.\.") as caught:
        nbmgpu.run(
            "1", {"__name__": "__main__"}, checkpoint_every="1h", engine_option=option,
            **ON_TWO_NODES,
        )  # fmt: skip
    assert f"see the folder of runs, {tmp_path / 'runs'}" in str(caught.value)
    assert "2 nodes that share both folders" in str(caught.value)
    assert "without --checkpoint-every" in str(caught.value)
    assert not [*tmp_path.glob("runs/*")]  # nothing was submitted


def test_a_run_waits_for_cores_says_so_and_can_be_stopped() -> None:
    run = nbmgpu.run(
        WAIT, {"__name__": "__main__"}, background=True,
        **ON_TWO_NODES | {"gpus": 3},
    )  # fmt: skip
    assert run is not None
    text = stopped_in_queue(run)
    assert text.startswith("Ray has no 2 nodes with 3 free cores each yet; free in all: 4 cores")


@matrix
def test_a_lost_node_is_named(cluster: RayCluster) -> None:
    cluster.add("lost")
    try:
        run = started("ray", nodes=3)
        cluster.raylet("lost").kill()
        with pytest.raises((LaunchError, RankKilledError), match="lost"):
            nbmgpu.attach(run.id)
    finally:
        cluster.remove("lost")


@matrix
def test_a_head_that_is_killed_ends_the_run_everywhere() -> None:
    run = started("ray")
    launcher = run.view.launcher
    assert launcher is not None
    os.kill(launcher.pid, 9)
    with pytest.raises((LaunchError, RankKilledError)):
        nbmgpu.attach(run.id)
    pids = [view.process.pid for view in run.view.ranks if view.process]
    wait(lambda: not any(map(psutil.pid_exists, pids)), 30)


def test_a_cluster_that_is_not_there_is_said() -> None:
    with pytest.raises(LaunchError, match=r"Cannot connect to the Ray cluster at 127.0.0.1:9"):
        nbmgpu.run(
            "1", {"__name__": "__main__"}, engine_option=["address=127.0.0.1:9"], **ON_TWO_NODES
        )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"adress": "auto"}, "--engine-option address="),
        ({"cpus-per-rank": "0"}, "cpus-per-rank=4"),
        ({"memory": "much"}, "memory=64G"),
    ],
)
def test_options_are_checked(values: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ClusterOptions.of(values)


def test_sizes_are_read() -> None:
    assert ClusterOptions.of({"memory": "1.5G"}).memory == 3 << 29
