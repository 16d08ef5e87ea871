"""Runs on several nodes start again from their newest checkpoint when a rank or a node is lost."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from kubernetes_cluster import KubernetesCluster
from ray_cluster import RayCluster
from several_nodes import ON_TWO_NODES, children, wait, wait_for_the_end
from slurm_cluster import SlurmCluster

import nbmgpu
from nbmgpu.runs import replacement
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import find_run, list_runs

matrix = pytest.mark.matrix("nbmgpu/engines", "nbmgpu/kernel")

CELL = """
import os, signal, time
import torch.nn.functional as F

for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
        if len(losses) == FAILS_AT and os.environ.get("RANK") == "1" and not os.path.exists(MARK):
            open(MARK, "w").close()
            if HOW == "raises":
                raise ZeroDivisionError("of the cell")
            while HOW == "killed later" and not os.path.exists(f"{MARK}-go"):
                time.sleep(0.1)
            if HOW.startswith("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(120)
"""
STEPS, FAILS_AT = 20, 15
OPTIONS = ON_TWO_NODES | {"gpus": 1, "exact": "never"}
RESTARTS = {"checkpoint_every": "2steps", "max_restarts": 1}


def notebook(mark: Path, how: str) -> dict[str, Any]:
    """Return the namespace of a notebook whose rank 1 fails once.

    Args:
        mark: the file that says that it has failed.
        how: ``raises``, ``killed``, ``killed later`` when there is a file ``mark-go``, or ``waits``
            for the test to do something.
    """
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    data = torch.utils.data.TensorDataset(torch.randn(80, 3), torch.randn(80, 1))
    return {
        "__name__": "__main__",
        "model": model,
        "opt": torch.optim.Adam(model.parameters(), 0.01),
        "loader": torch.utils.data.DataLoader(data, 8, shuffle=True),
        "losses": [],
        "MARK": str(mark),
        "FAILS_AT": FAILS_AT,
        "HOW": how,
    }


ENGINES = ["slurm", *(pytest.param(name, marks=matrix) for name in ("ray", "kubernetes"))]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Start a cluster; return the name of its engine, or of its profile."""
    request.getfixturevalue(f"{request.param}_cluster")
    return "kubernetes_played" if request.param == "kubernetes" else str(request.param)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After each test, no processes of runs are left."""
    before = children()
    yield
    wait_for_the_end(before)


def assert_as_unbroken(found: dict[str, Any], tmp_path: Path) -> Run:
    """Compare weights and curve with those of one device that nothing has happened to."""
    (tmp_path / "mark").touch()
    alone = notebook(tmp_path / "mark", "")
    exec(CELL, alone)
    for own, other in zip(found["model"].parameters(), alone["model"].parameters(), strict=True):
        torch.testing.assert_close(own, other, atol=1e-6, rtol=0)
    run = nbmgpu.last_run
    assert run is not None
    assert_same_curve(run, alone["losses"])
    return run


def run_meanwhile(event: Callable[[], None], tmp_path: Path, **options: Any) -> Run:
    """Run the cell while ``event`` happens; return the last run, which must be as if it had not."""
    thread = threading.Thread(target=event)
    thread.start()
    found = notebook(tmp_path / "mark", "waits")
    nbmgpu.run(CELL, found, **options, **OPTIONS, **RESTARTS)
    thread.join()
    return assert_as_unbroken(found, tmp_path)


def assert_same_curve(run: Run, losses: list[float]) -> None:
    """Compare the points of a run with those of one device."""
    curve = run.view.curves["loss"]
    steps, values = (array.tolist() for array in curve.arrays())
    assert steps == list(range(1, STEPS + 1))
    assert values == pytest.approx(losses, abs=1e-6)
    assert set(curve.weights.values()) == {1.0}, "no point came twice, none is of one rank alone"


def test_a_killed_rank_starts_the_run_again(engine: str, tmp_path: Path) -> None:
    before = len(list_runs())
    found = notebook(tmp_path / "mark", "killed")
    nbmgpu.run(CELL, found, engine=engine, **OPTIONS, **RESTARTS)
    run = assert_as_unbroken(found, tmp_path)
    notices = run.view.notices
    assert re.search(r"Rank 1 .* SIGKILL.*Restarts left: 0", notices["restarted"].text)
    assert re.search(r"Resumed after step 1[024] ", notices["resumed"].text)
    assert len(list_runs()) == before + 2


LATER = """
import sys
sys.path[:] = {path!r}
import nbmgpu
from test_restarts import CELL, OPTIONS, RESTARTS, notebook
from pathlib import Path
found = notebook(Path({mark!r}), "killed later")
run = nbmgpu.run(CELL, found, engine={engine!r}, background=True, **OPTIONS, **RESTARTS)
while run.view.launcher is None:
    run.refresh()
print(run.id)
"""


def test_a_run_without_its_kernel_starts_again_by_itself(engine: str, tmp_path: Path) -> None:
    if engine.startswith("kubernetes"):
        pytest.skip("a pod may not create jobs")
    mark = tmp_path / "mark"
    program = LATER.format(path=sys.path, mark=str(mark), engine=engine)
    kernel = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=120, check=True
    )
    failed = find_run(kernel.stdout.strip())
    wait(mark.exists)
    (tmp_path / "mark-go").touch()
    wait(lambda: replacement.replacement_of(failed) is not None, 90)
    run = replacement.newest_of(failed)
    assert run.wait(90) == "finished", run.log(1)
    assert "Restarts left: 0" in run.view.notices["restarted"].text
    alone = notebook(mark, "")
    exec(CELL, alone)
    assert_same_curve(run, alone["losses"])
    shutil.rmtree(run.folder)


@matrix
def test_an_exception_does_not(engine: str, tmp_path: Path) -> None:
    before = len(list_runs())
    with pytest.raises(ZeroDivisionError):
        nbmgpu.run(
            CELL, notebook(tmp_path / "mark", "raises"), engine=engine, **OPTIONS, **RESTARTS
        )
    assert len(list_runs()) == before + 1


@matrix
@pytest.mark.parametrize("noticed_first", [False, True])
def test_a_lost_node_of_slurm_starts_it_again_when_it_is_back(
    slurm_cluster: SlurmCluster, tmp_path: Path, noticed_first: bool
) -> None:
    """Either its ranks end first, as with a power failure, or Slurm misses it, as without network.

    The new run waits in the queue until the node is back.
    """
    failed: list[Run] = []

    def lose_node() -> None:
        wait((tmp_path / "mark").exists)
        failed.append(list_runs()[0])
        lost = slurm_cluster.processes_of("node2")
        for each in lost:
            each.suspend() if noticed_first else each.kill()
        slurm_cluster.run("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=lost")
        wait(lambda: list_runs()[0].id != failed[0].id)
        for each in lost if noticed_first else ():
            each.kill()
        slurm_cluster.start_node("node2")
        slurm_cluster.run("scontrol", "update", "NodeName=node2", "State=RESUME")

    run_meanwhile(lose_node, tmp_path, engine="slurm")


@matrix
@pytest.mark.parametrize("index", [0, 1])
def test_a_lost_pod_starts_it_again(
    kubernetes_cluster: KubernetesCluster, tmp_path: Path, index: int
) -> None:
    def evict() -> None:
        wait((tmp_path / "mark").exists)
        (pod,) = [each for each in kubernetes_cluster.pods if each.index == index]
        pod.evict({"reason": "Evicted", "message": "The node was low on resource: memory."})

    run = run_meanwhile(evict, tmp_path, engine="kubernetes_played")
    assert "was evicted" in run.view.notices["restarted"].text
    wait(lambda: not kubernetes_cluster.pods)  # both jobs are deleted


@matrix
@pytest.mark.parametrize("by_client", [False, True], ids=["as a node", "by a client"])
def test_a_lost_node_of_ray_starts_it_again_when_there_is_another_one(
    by_client: bool, ray_cluster: RayCluster, tmp_path: Path
) -> None:
    option = (f"address={ray_cluster.client_address}",) if by_client else ()

    def lose_node() -> None:
        wait((tmp_path / "mark").exists)
        failed = list_runs()[0]
        failed.refresh()
        name = failed.view.ranks[1].host
        ray_cluster.raylet(name).kill()
        wait(lambda: list_runs()[0].id != failed.id)
        ray_cluster.remove(name)
        ray_cluster.add(name)

    run = run_meanwhile(lose_node, tmp_path, engine="ray", engine_option=option)
    # The node launcher's connection may end before Ray misses the node.
    assert re.search(r"[Tt]he node node\d", run.view.notices["restarted"].text)
