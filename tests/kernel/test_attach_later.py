"""A run on a cluster outlives its kernel, and a later kernel gets its results."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import Notebook

sys.path.append(str(Path(__file__).parents[1] / "engines"))
from kubernetes_cluster import CLAIM, IMAGE, played_kubernetes
from ray_cluster import started_ray
from slurm_cluster import INSTALL, SlurmCluster, missing_program

pytestmark = pytest.mark.matrix("nbmgpu/engines", "nbmgpu/kernel", "nbmgpu/serialization")

CELL = """
losses = []
for epoch in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        history.append(len(losses))
        time.sleep(PAUSE)
"""
TRAINS_MODEL = "optimizer.param_groups[0]['params'][0] is model.weight"
STATE = "model.weight.flatten().tolist(), losses, history"


@pytest.fixture(params=["slurm", "ray", "kubernetes"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Start a cluster that kernels find by their environment; return engine and options."""
    if request.param == "kubernetes":
        with played_kubernetes(tmp_path):
            options = f"claim={CLAIM},mount={tmp_path},image={IMAGE}"
            yield f"kubernetes --engine-option {options}"
        return
    if request.param == "ray":
        with started_ray({"node1": None, "node2": None}):
            yield "ray"
        return
    if missing_program():
        pytest.skip(f"no Slurm: {INSTALL}")
    folder = tmp_path / "slurm"
    folder.mkdir()
    try:
        cluster = SlurmCluster(folder)
    except TimeoutError:
        pytest.skip("Slurm does not start here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.config))
        yield "slurm"
    cluster.stop()


def _told(folder: Path) -> str:
    """Return what a run that does not begin has written."""
    files = [
        path for path in sorted(folder.rglob("*")) if path.suffix in {".jsonl", ".log", ".out"}
    ]
    return "\n".join(f"--- {path}\n{path.read_text()[-2000:]}" for path in files)


def test_a_later_kernel_gets_the_results(new_notebook, engine, tmp_path):
    variables = {"NBMGPU_RUNS": str(tmp_path / "runs")}
    first = new_notebook("first", **variables)
    first.run("PAUSE, EPOCHS, history = 2, 3, []")
    start = f"%%mgpu --engine {engine} --nodes 2 --gpus 1 --cpu --background\n{CELL}"
    first.run(start)
    ids = [first.value("nbmgpu.last_run.id")]
    first.run(start)
    ids.append(first.value("nbmgpu.last_run.id"))
    folders = [tmp_path / "runs" / run for run in ids]
    logs = [folder / "events" / "rank-1.jsonl" for folder in folders]
    deadline = time.monotonic() + 180  # two jobs of Slurm, on a busy machine
    while not all(log.exists() and "running" in log.read_text() for log in logs):
        assert time.monotonic() < deadline, "\n".join(map(_told, folders))
        time.sleep(0.1)
    os.kill(first.value("os.getpid()"), signal.SIGKILL)

    second = new_notebook("second", **variables)
    second.run("history, PAUSE, EPOCHS = [], 0, 3\nown, kept = model, history")
    told = attached(second, ids[0])
    assert re.search(r"updated in place: .*`model`, `history`; new: .*`losses`", told)
    assert second.value("own is model, kept is history, " + TRAINS_MODEL) == (True, True, True)
    results = second.value(STATE)
    left = {path.name for path in (tmp_path / "runs" / ids[0]).iterdir()}
    assert not left & {"bundle", "result-0", "result-1"}

    second.run("del optimizer\nhistory.clear()")
    told = attached(second, ids[1])
    assert "This notebook has no `optimizer` like that of the run" in told
    assert second.value("own is model, " + TRAINS_MODEL) == (False, True)
    again = second.value(STATE)

    third = new_notebook("third", **variables)
    third.run("history, PAUSE, EPOCHS = [], 0, 3")
    third.run(CELL)
    weights, losses, history = third.value(STATE)
    for found in (results, again):
        assert found[0] == pytest.approx(weights, abs=1e-6)
        assert found[1] == pytest.approx(losses, abs=1e-6)
        assert found[2] == history
    assert "Results of run" not in attached(third, ids[0]), "they are written back once"


def test_a_failed_run_without_results_changes_nothing(new_notebook, engine, tmp_path):
    variables = {"NBMGPU_RUNS": str(tmp_path / "runs")}
    first = new_notebook("first", **variables)
    cell = "optimizer\ntime.sleep(3)\nmodel.weight.data.fill_(7)\nos.kill(os.getpid(), 9)"
    first.run(f"%%mgpu --engine {engine} --gpus 2 --cpu --background --strategy none\n{cell}")
    run = first.value("nbmgpu.last_run.id")
    os.kill(first.value("os.getpid()"), signal.SIGKILL)
    second = new_notebook("second", **variables)
    second.run("model.weight.data.fill_(5)")
    seen = attached(second, run)
    assert second.value(f"nbmgpu.runs.run_list.find_run({run!r}).state") == "failed", seen
    assert second.value("model.weight.unique().tolist()") == [5.0]


def attached(notebook: Notebook, run: str) -> str:
    """Attach to a run; return all that is shown."""
    return "".join(notebook.run(f"%mgpu attach {run}").seen)
