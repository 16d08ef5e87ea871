"""What Slurm, Ray and Kubernetes have in common: two nodes, two ranks each.

Slurm and Ray are real; the API of Kubernetes is played, and its pods are real processes.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import torch
from idioms.comparison import assert_equal
from idioms.idiom import Idiom
from idioms.tables import BY_NAME, TABLES
from several_nodes import ON_TWO_NODES, WAIT, children, started, wait_for_the_end
from sklearn.preprocessing import StandardScaler

import nbmgpu
from nbmgpu.engines.kubernetes.train_job import job_name
from nbmgpu.errors import LaunchError, RankKilledError
from nbmgpu.report.rank_rows import rows
from nbmgpu.report.summary import summary_text
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import list_runs

matrix = pytest.mark.matrix("nbmgpu/engines", "nbmgpu/rank/store", "nbmgpu/serialization")


IDIOMS = [TABLES[table][0] for table in ("loaders", "losses", "optimizers", "evaluation")]


@pytest.fixture(scope="module", params=["slurm", "ray", "kubernetes"])
def engine(request: pytest.FixtureRequest) -> str:
    """Start a cluster of the engine; return the name of the engine, or of its profile."""
    request.getfixturevalue(f"{request.param}_cluster")
    return "kubernetes_played" if request.param == "kubernetes" else str(request.param)


@pytest.fixture(autouse=True)
def nothing_left(engine: str) -> Iterator[None]:
    """After each test, no processes of runs are left."""
    before = children()
    yield
    wait_for_the_end(before)


@pytest.mark.parametrize(
    ("strategy", "idiom", "options"),
    [
        pytest.param("ddp", "AdamW", {}, id="ddp"),
        pytest.param("fsdp", "AdamW", {}, id="fsdp", marks=matrix),
        pytest.param("tp", "AdamW", {"mesh": "dp=2,tp=2"}, id="tp inside a node", marks=matrix),
        pytest.param("hsdp", "AdamW", {"mesh": "dp=2,fsdp=2"}, id="fsdp in a node", marks=matrix),
        pytest.param("fsdp+pp", "AdamW", {"mesh": "pp=2,fsdp=2"}, id="pp between", marks=matrix),
    ],
)
def test_the_numbers_are_those_of_one_device(
    engine: str, strategy: str, idiom: str, options: dict[str, Any]
) -> None:
    result = assert_equal(
        BY_NAME[idiom], strategy=strategy, engine=engine, **ON_TWO_NODES, **options
    )
    assert result.run.record.nodes == 2
    hosts = [view.host for view in result.run.view.ranks]
    assert sorted(hosts) == ["node1", "node1", "node2", "node2"]
    assert hosts[0] == hosts[1]
    assert "on 4 ranks of 2 nodes (cpu)" in summary_text(result.run)
    assert [row.device.split(", ")[0] for row in rows(result.run, 0.0)] == hosts


@matrix
@pytest.mark.parametrize("idiom", IDIOMS)
def test_idioms_have_the_numbers_of_one_device(engine: str, idiom: Idiom) -> None:
    assert_equal(idiom, engine=engine, **ON_TWO_NODES)


def test_ranks_know_their_place_and_write_results_back(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SET_IN_THE_NOTEBOOK", "1")
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    cell = f"""
import os, torch, torch.distributed as dist
place = [None] * 4
dist.all_gather_object(place, [int(os.environ[n]) for n in {names}])
model.weight.data.fill_(dist.get_world_size())
values.append(os.environ.get("NBMGPU_STORE_KEY"))
values.append(os.environ.get("PYTHONSAFEPATH"))
values.append(os.environ.get("SET_IN_THE_NOTEBOOK"))
hash("x")
"""
    namespace: dict[str, Any] = {"__name__": "__main__", "model": torch.nn.Linear(1, 1)}
    namespace["values"] = []
    model = namespace["model"]
    run = nbmgpu.run(cell, namespace, strategy="none", engine=engine, **ON_TWO_NODES)
    assert run is not None
    assert namespace["place"] == [[n, n % 2, 4, 2, n // 2] for n in range(4)]
    assert namespace["model"] is model
    assert model.weight.item() == 4
    assert namespace["values"] == [None, None, "1"]
    assert not {p.name for p in run.folder.iterdir()} & {"bundle", "result-0", "result-3"}


def test_an_error_names_rank_node_and_line(engine: str) -> None:
    cell = "import os\n\nif os.environ['RANK'] == '3':\n    raise KeyError('here')\n" + WAIT
    with pytest.raises(KeyError, match="here") as caught:
        nbmgpu.run(cell, {"__name__": "__main__"}, engine=engine, **ON_TWO_NODES)
    assert re.search(
        r"Rank 3 of 4 on node\d raised KeyError, line 4 of the cell", str(caught.value.__cause__)
    )
    assert re.search(r"^failure +rank 3 on node\d: KeyError", summary_text(list_runs()[0]), re.M)


def test_stop_writes_partial_results_back(engine: str) -> None:
    namespace = {"__name__": "__main__", "model": torch.nn.Linear(1, 1)}
    run = started(engine, "import torch\nmodel.weight.data.fill_(7)\n" + WAIT, namespace)
    Run(run.folder).stop()  # as another process does
    with pytest.raises(KeyboardInterrupt, match="back in the notebook"):
        nbmgpu.attach(run.id)
    assert namespace["model"].weight.item() == 7


TRAINING = """
import torch
for step, (x, y) in enumerate(loader):
    if step == 3:
        print("ready", flush=True)
    opt.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    opt.step()
"""


@matrix
def test_a_lost_node_is_named_by_the_error(engine: str) -> None:
    """Ranks of the other node lose their connections at the same time: that is no other cause."""
    model = torch.nn.Linear(3, 1)
    data = torch.utils.data.TensorDataset(torch.randn(400000, 3), torch.randn(400000, 1))
    names = {
        "__name__": "__main__",
        "model": model,
        "opt": torch.optim.SGD(model.parameters(), 0.01),
        "loader": torch.utils.data.DataLoader(data, 8),
    }
    run = started(engine, TRAINING, names)
    own = [line for line in children() if run.id in line]  # other clones may run tests, too
    (pid, *_) = [line.split()[0] for line in own if "--node-rank=1" in line]
    os.kill(int(pid), 9)  # its ranks end with it
    with pytest.raises(RankKilledError, match=r"The node node\d is lost|lost the node node\d"):
        nbmgpu.attach(run.id)
    assert not run.view.restart_reason
    assert re.search(r"^failure +(The node|Ray has lost the)", summary_text(run), re.M)


@matrix
def test_a_killed_rank_fails_the_run(engine: str) -> None:
    cell = "import os\nif os.environ['RANK'] == '2':\n    os.kill(os.getpid(), 9)\n" + WAIT
    with pytest.raises(RankKilledError, match=r"Rank 2 of 4 on node\d was ended by SIGKILL"):
        nbmgpu.run(cell, {"__name__": "__main__"}, engine=engine, **ON_TWO_NODES)


def python_with(folder: Path, package: str, version: str) -> Path:
    """Return an interpreter, in ``folder``, for which a package has another version."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_other_versions_on_a_node_are_named(engine: str, tmp_path: Path) -> None:
    python = python_with(tmp_path, "torch", "1.0")
    with pytest.raises(LaunchError, match=r"Node node\d has torch 1.0 instead of \d"):
        nbmgpu.run(
            "1",
            {"__name__": "__main__"},
            engine_option=[f"python={python}"],
            engine=engine,
            **ON_TWO_NODES,
        )


@matrix
def test_packages_that_the_cell_uses_are_compared(engine: str, tmp_path: Path) -> None:
    names = {"__name__": "__main__", "scaler": StandardScaler()}
    python = python_with(tmp_path, "scikit-learn", "0.1")
    options = {"engine_option": [f"python={python}"], "engine": engine, **ON_TWO_NODES}
    with pytest.raises(LaunchError, match=r"has scikit-learn 0.1 instead of .*scikit-learn==1"):
        nbmgpu.run("scaler", names, **options)
    nbmgpu.run("print('not used here')", {"__name__": "__main__"}, **options)


def test_a_node_without_python_is_named(engine: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$SLURM_NODEID $(hostname) $NBMGPU_NODE_NAME" in "1 "*|*node2*) '
        'echo "no Python on node2"; exit 1;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    with pytest.raises(LaunchError) as caught:
        nbmgpu.run(
            "1",
            {"__name__": "__main__"},
            engine_option=[f"python={python}"],
            engine=engine,
            **ON_TWO_NODES,
        )
    assert re.search(r"of 2 nodes|Node node2 cannot run ranks", str(caught.value))
    assert "no Python on node2" in str(caught.value)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("python=/none/python", "/none/python"),
        ("interface=none0", r"Node node\d has no network interface 'none0' with .*It has: .*lo"),
    ],
)
def test_what_nodes_do_not_have_is_said(engine: str, option: str, words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        nbmgpu.run(
            "1", {"__name__": "__main__"}, engine_option=[option], engine=engine, **ON_TWO_NODES
        )


@matrix
def test_a_python_without_packages_is_said(engine: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    words = "No module named 'nbmgpu'" if "kubernetes" in engine else f"{python} on node .* has no"
    with pytest.raises(LaunchError, match=words):
        nbmgpu.run(
            "1", {"__name__": "__main__"}, engine_option=[f"python={python}"], engine=engine,
            **ON_TWO_NODES,
        )  # fmt: skip


def signal_head(engine: str, run: Run, request: pytest.FixtureRequest) -> None:
    """Send SIGTERM to the head of a run, as its scheduler does."""
    if engine == "kubernetes_played":  # its pid is one of another namespace of pids
        request.getfixturevalue("kubernetes_cluster").delete(job_name(run.id))
        return
    launcher = run.view.launcher
    assert launcher is not None
    os.kill(launcher.pid, signal.SIGTERM)  # the head is on this machine


@matrix
@pytest.mark.parametrize("by", ["Stop", "SIGTERM"])
def test_ranks_of_several_nodes_agree_on_a_last_checkpoint(
    engine: str, by: str, request: pytest.FixtureRequest
) -> None:
    cell = """
import time, torch
for step, (x, y) in enumerate(loader):
    opt.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    opt.step()
    time.sleep(0.1)
    if step == 3:
        print("ready", flush=True)
"""

    def names() -> dict[str, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        data = torch.utils.data.TensorDataset(torch.randn(480, 3), torch.randn(480, 1))
        return {
            "__name__": "__main__",
            "model": model,
            "opt": torch.optim.Adam(model.parameters()),
            "loader": torch.utils.data.DataLoader(data, 8, shuffle=True),
        }

    alone = names()
    exec(cell.replace("time.sleep(0.1)", ""), alone)
    run = started(engine, cell, names(), checkpoint_every="1h")
    if by == "Stop":
        Run(run.folder).stop()
    else:
        signal_head(engine, run, request)
    with pytest.raises((KeyboardInterrupt, LaunchError), match=r"stopped|scheduler"):
        nbmgpu.attach(run.id)
    (checkpoint,) = run.checkpoints
    assert 4 <= checkpoint.step < 60
    namespace = names()
    nbmgpu.run(cell, namespace, resume=run.id, gpus=2, cpu=True)
    torch.testing.assert_close(namespace["model"].weight, alone["model"].weight, atol=1e-6, rtol=0)


@matrix
@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_trainer_of_lightning_trains_on_all_nodes(engine: str) -> None:
    cell = """
trainer = L.Trainer(max_epochs=2, logger=False, enable_checkpointing=False,
                    enable_model_summary=False)
trainer.fit(module, loader)
"""

    def names() -> dict[str, Any]:
        torch.manual_seed(0)
        data = torch.utils.data.TensorDataset(torch.randn(32, 3), torch.randn(32, 1))
        loader = torch.utils.data.DataLoader(data, 8)
        return {"__name__": "__main__", "L": lightning, "module": Module(), "loader": loader}

    alone, ranks = names(), names()
    exec(cell, alone)
    nbmgpu.run(cell, ranks, engine=engine, **ON_TWO_NODES)
    expected, found = (each["module"].layer.weight for each in (alone, ranks))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)
