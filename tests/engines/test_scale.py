"""``%%mgpu scale --nodes 1,2`` on a real Slurm and a real Ray."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from several_nodes import children, wait, wait_for_the_end
from slurm_cluster import SlurmCluster

import nbmgpu
from nbmgpu.comparison import ComparisonRunner
from nbmgpu.comparison.request import parse
from nbmgpu.engines.slurm.commands import job_state
from nbmgpu.errors import OptionError

CELL = """
import torch
for epoch in range(50):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""


@pytest.fixture(scope="module", params=["slurm", "ray"])
def engine(request: pytest.FixtureRequest) -> str:
    """Start a cluster of the engine."""
    request.getfixturevalue(f"{request.param}_cluster")
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After each test, no processes of runs are left."""
    before = children()
    yield
    wait_for_the_end(before)


def notebook() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1)
    data = torch.utils.data.TensorDataset(torch.randn(40, 16), torch.randn(40, 1))
    return {
        "__name__": "__main__",
        "model": model,
        "optimizer": torch.optim.Adam(model.parameters()),
        "loader": torch.utils.data.DataLoader(data, 8, shuffle=True),
        "losses": [],
    }


def hosts(run_id: str) -> set[str]:
    """Return the nodes of the run's ranks."""
    run = nbmgpu.find_run(run_id)
    run.refresh()
    found = {view.host for view in run.view.ranks}
    assert found <= {"node1", "node2"}
    return found


def test_a_cell_is_compared_on_one_and_two_nodes(engine: str) -> None:
    names = notebook()
    weight = names["model"].weight.detach().clone()
    comparison = nbmgpu.scale(CELL, names, engine=engine, nodes=(1, 2), gpus=2, cpu=True, steps=8)
    assert [(row.name, row.nodes, row.ranks, row.state, row.reason) for row in comparison.rows] == [
        ("one device", 1, 1, "finished", ""),
        ("ddp", 1, 2, "finished", ""),
        ("ddp", 2, 4, "finished", ""),
    ]
    assert torch.equal(names["model"].weight, weight)
    assert not names["losses"]
    for row in comparison.rows:
        assert row.loss.agrees
        assert row.loss.difference == pytest.approx(0, abs=1e-5)
        assert row.timing.steps == 8
        assert row.efficiency == pytest.approx(row.speed_up / row.ranks)
    assert [len(hosts(row.run)) for row in comparison.rows] == [1, 1, 2]
    shown = repr(comparison)
    assert shown.splitlines()[2].split()[:3] == ["nodes", "ranks", "step"]
    assert "2 nodes: " in shown
    assert " times the speed of 1 node, " in shown
    assert comparison.rows[2].line == (
        f"%%mgpu --strategy ddp --gpus 2 --cpu --engine {engine} --nodes 2"
    )
    assert comparison._repr_html_().count("<circle") == 3


def test_the_queue_is_shown_while_a_run_waits(slurm_cluster: SlurmCluster) -> None:
    job = ("--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 60")
    blocker = slurm_cluster.run("sbatch", "--parsable", *job).strip()
    wait(lambda: job_state(int(blocker)).name == "RUNNING")
    request = parse("scale", "--engine slurm --nodes 1,2 --gpus 1 --cpu --steps 4")
    runner = ComparisonRunner(request, CELL, notebook())
    shown = []
    for _ in runner.run():
        state = runner.running.state if runner.running else ""
        if "place 1 in the queue" in state and not shown:
            shown.append(state)
            slurm_cluster.run("scancel", blocker)
        time.sleep(0.05)
    assert "is pending" in shown[0]
    assert [row.state for row in runner.trials] == ["finished", "finished"]


@pytest.mark.parametrize(
    ("line", "what", "instead"),
    [
        (
            "--nodes 1,2",
            "--nodes 1,2 needs an engine for several machines",
            "--nodes 1,2 --engine slurm",
        ),
        (
            "--engine ray --nodes 1,2 --gpus 2,4",
            "--nodes 1,2 and --gpus 2,4 are both lists",
            "--gpus 4 --nodes 1,2 --engine ray",
        ),
        (
            "--engine ray --nodes 0,2",
            "'0,2' does not list different numbers of nodes",
            "--nodes 2 --engine ray",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_a_line_that_can(
    line: str, what: str, instead: str
) -> None:
    with pytest.raises(OptionError) as refused:
        parse("scale", line)
    lines = str(refused.value).splitlines()
    assert lines[0] == f"{what}."
    assert lines[-1] == f"Try: %%mgpu scale {instead}"
    parse("scale", instead)


def test_keywords_are_refused_alike() -> None:
    with pytest.raises(OptionError, match=r"Try: nodes=\(1, 2\), engine='slurm'"):
        nbmgpu.scale(CELL, notebook(), nodes=(1, 2), gpus=2)


def test_one_device_of_a_comparison_on_nodes_is_one_rank() -> None:
    request = parse("compare", "--engine slurm --nodes 2 --gpus 2 --strategies ddp,fsdp")
    assert [(entry.ranks, entry.nodes) for entry in request.entries] == [(1, None), (4, 2), (4, 2)]
