"""Runs as jobs of a real Slurm: two nodes on this machine, with two ranks each."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import psutil
import pytest
import torch
from idioms.comparison import assert_equal
from idioms.tables import BY_NAME
from slurm_cluster import INSTALL, SlurmCluster, missing_program

import nbmgpu
from nbmgpu.engines.registry import get_engine
from nbmgpu.engines.slurm.commands import GONE, job_state
from nbmgpu.engines.slurm.job import JOB_FILE
from nbmgpu.errors import LaunchError, OptionError, RankKilledError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.report.rank_rows import rows
from nbmgpu.report.summary import summary_text
from nbmgpu.runs.run import Run

pytestmark = pytest.mark.skipif(bool(missing_program()), reason=f"no Slurm: {INSTALL}")

matrix = pytest.mark.matrix("nbmgpu/engines", "nbmgpu/rank/store", "nbmgpu/serialization")

ON_TWO_NODES: dict[str, Any] = {"engine": "slurm", "nodes": 2, "gpus": 2, "cpu": True}

WAIT = "print('ready', flush=True)\nimport time\ntime.sleep(120)\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    folder = tmp_path_factory.mktemp("slurm")
    try:
        cluster = SlurmCluster(folder)
    except TimeoutError:  # such as in a container that munge or Slurm do not like
        pytest.skip(f"Slurm does not start here: {last_lines(folder)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.config))
        yield cluster
    cluster.stop()


def last_lines(folder: Path) -> str:
    """Return the last line of each log in ``folder``."""
    texts = {log.name: log.read_text(errors="replace").strip() for log in folder.glob("*.log")}
    return "; ".join(f"{name}: {text.splitlines()[-1]}" for name, text in texts.items() if text)


@pytest.fixture(autouse=True)
def nothing_left(cluster: SlurmCluster) -> Iterator[None]:
    """After each test, neither jobs nor processes of them are left."""
    before = set(children())
    yield
    wait(lambda: not cluster.jobs() and not set(children()) - before, 30)


def children() -> list[str]:
    """Return the command lines of the processes of runs on the nodes."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if "nbmgpu.engines.slurm" in line or "multi_node" in line:
            found.append(f"{process.pid} {line}")
    return found


def wait(done: Any, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def started(cell: str = WAIT, namespace: dict[str, Any] | None = None, **options: Any) -> Run:
    """Return a background run whose ranks all run the cell."""
    names = {"__name__": "__main__"} if namespace is None else namespace
    run = nbmgpu.run(cell, names, background=True, **ON_TWO_NODES | options)
    assert run is not None
    wait(lambda: run.over or all("ready" in run.log(rank) for rank in range(4)))
    assert run.state == "running", run.view.ended
    return run


@pytest.mark.parametrize(
    ("strategy", "idiom", "options"),
    [
        pytest.param("ddp", "AdamW", {}, id="ddp"),
        pytest.param("fsdp", "AdamW", {}, id="fsdp", marks=matrix),
        pytest.param("tp", "AdamW", {"mesh": "dp=2,tp=2"}, id="tp inside a node", marks=matrix),
    ],
)
def test_the_numbers_are_those_of_one_device(
    strategy: str, idiom: str, options: dict[str, Any]
) -> None:
    result = assert_equal(BY_NAME[idiom], strategy=strategy, **ON_TWO_NODES, **options)
    assert result.run.record.nodes == 2
    assert {view.host for view in result.run.view.ranks} == {"node1", "node2"}
    assert "on 4 ranks of 2 nodes (cpu)" in summary_text(result.run)
    assert [row.device.split(", ")[0] for row in rows(result.run, 0.0)] == ["node1"] * 2 + [
        "node2"
    ] * 2


def test_ranks_know_their_place_and_write_results_back() -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    cell = f"""
import os, torch, torch.distributed as dist
place = [None] * 4
dist.all_gather_object(place, [int(os.environ[n]) for n in {names}])
model.weight.data.fill_(dist.get_world_size())
values.append(os.environ.get("NBMGPU_STORE_KEY"))
hash("x")
"""
    namespace: dict[str, Any] = {"__name__": "__main__", "model": torch.nn.Linear(1, 1)}
    namespace["values"] = []
    model = namespace["model"]
    run = nbmgpu.run(cell, namespace, strategy="none", **ON_TWO_NODES)
    assert run is not None
    assert namespace["place"] == [[n, n % 2, 4, 2, n // 2] for n in range(4)]
    assert namespace["model"] is model
    assert model.weight.item() == 4
    assert namespace["values"] == [None]
    assert not {p.name for p in run.folder.iterdir()} & {"bundle", "result-0", "result-3"}


def test_an_error_names_rank_node_and_line() -> None:
    cell = "import os\n\nif os.environ['RANK'] == '3':\n    raise KeyError('here')\n" + WAIT
    with pytest.raises(KeyError, match="here") as caught:
        nbmgpu.run(cell, {"__name__": "__main__"}, **ON_TWO_NODES)
    assert "Rank 3 of 4 on node2 raised KeyError, line 4 of the cell" in str(caught.value.__cause__)


def test_stop_writes_partial_results_back() -> None:
    namespace = {"__name__": "__main__", "model": torch.nn.Linear(1, 1)}
    run = started("import torch\nmodel.weight.data.fill_(7)\n" + WAIT, namespace)
    Run(run.folder).stop()  # as another process does
    with pytest.raises(KeyboardInterrupt, match="back in the notebook"):
        nbmgpu.attach(run.id)
    assert namespace["model"].weight.item() == 7


def test_a_run_that_is_queued_says_why_and_can_be_stopped(cluster: SlurmCluster) -> None:
    blocker = cluster.run("sbatch", "--parsable", "--nodes=2", "--exclusive", "-o", "/dev/null",
                          "--wrap", "sleep 60").strip()  # fmt: skip
    wait(lambda: job_state(int(blocker)).name == "RUNNING")
    run = nbmgpu.run(WAIT, {"__name__": "__main__"}, background=True, **ON_TWO_NODES)
    assert run is not None
    reader = Run(run.folder)

    def stop_when_queued() -> None:
        wait(lambda: reader.state == "starting" and "queued" in reader.view.notices)
        reader.stop()

    stopper = threading.Thread(target=stop_when_queued)
    stopper.start()
    try:
        with pytest.raises(KeyboardInterrupt, match="its ranks had not been started"):
            nbmgpu.attach(run.id)
    finally:
        cluster.run("scancel", blocker)
        stopper.join()
    assert run.state == "stopped"
    text = reader.view.notices["queued"].text
    assert re.fullmatch(r"Slurm job \d+ is pending \(\w+\), place 1 in the queue.*", text)


def test_a_job_that_is_cancelled_fails_the_run(cluster: SlurmCluster) -> None:
    run = started()
    cluster.run("scancel", (run.folder / JOB_FILE).read_text())
    with pytest.raises((LaunchError, KeyboardInterrupt, RankKilledError), match="scheduler"):
        nbmgpu.attach(run.id)


@matrix
def test_a_node_launcher_that_is_killed_fails_the_run() -> None:
    run = started()
    (pid, *_) = [line.split()[0] for line in children() if "--node-rank=1" in line]
    os.kill(int(pid), 9)
    with pytest.raises((LaunchError, RankKilledError)) as caught:
        nbmgpu.attach(run.id)
    assert "node2" in str(caught.value)


@matrix
def test_a_killed_rank_fails_the_run() -> None:
    cell = "import os\nif os.environ['RANK'] == '2':\n    os.kill(os.getpid(), 9)\n" + WAIT
    with pytest.raises(RankKilledError, match=r"Rank 2 of 4 on node2 was ended by SIGKILL"):
        nbmgpu.run(cell, {"__name__": "__main__"}, **ON_TWO_NODES)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("partition=none", "invalid partition"),
        ("partion=main", "--engine-option partition="),
        ("cpus-per-rank=many", "cpus-per-rank=4"),
    ],
)
def test_what_slurm_does_not_have_is_said(option: str, words: str) -> None:
    with pytest.raises((LaunchError, OptionError), match=words):
        nbmgpu.run("1", {"__name__": "__main__"}, engine_option=[option], **ON_TWO_NODES)


def test_other_versions_on_a_node_are_named(tmp_path: Path) -> None:
    info = tmp_path / "torch-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    with pytest.raises(LaunchError, match=r"Node node\d has torch 1.0 instead of \d"):
        nbmgpu.run(
            "1", {"__name__": "__main__"}, engine_option=[f"python={python}"], **ON_TWO_NODES
        )


def test_a_node_without_python_is_named(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$SLURM_NODEID" = 1 ] && echo "no Python on $SLURMD_NODENAME" && exit 1\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    with pytest.raises(LaunchError) as caught:
        nbmgpu.run(
            "1", {"__name__": "__main__"}, engine_option=[f"python={python}"], **ON_TWO_NODES
        )
    assert "of 2 nodes" in str(caught.value)
    assert "no Python on node2" in str(caught.value)


def test_a_python_that_nodes_do_not_have_is_said() -> None:
    with pytest.raises(LaunchError, match="/none/python"):
        nbmgpu.run(
            "1", {"__name__": "__main__"}, engine_option=["python=/none/python"], **ON_TWO_NODES
        )


def test_a_job_outlives_what_has_submitted_it(cluster: SlurmCluster) -> None:
    run = started()
    job = int((run.folder / JOB_FILE).read_text())
    assert job_state(job).name == "RUNNING"
    run.stop(force=True)
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.attach(run.id)
    wait(lambda: job_state(job).name in ("COMPLETED", "COMPLETING", GONE))


def test_options_are_written_as_they_are_read() -> None:
    line = "--engine slurm --nodes 2 --gpus 4 --engine-option partition=gpu,nodelist=a1,a2"
    options = RunOptions.parse(line)
    assert options.engine_values() == {"partition": "gpu", "nodelist": "a1,a2"}
    assert RunOptions.parse(options.line()) == options
    with pytest.raises(OptionError, match="--engine slurm"):
        RunOptions.parse("--nodes 2")
    with pytest.raises(OptionError, match="Try: nodes=2, engine='slurm'"):
        RunOptions.of(nodes=2)


@matrix
@pytest.mark.parametrize("by", ["Stop", "the warning before the time limit"])
def test_ranks_of_several_nodes_agree_on_a_last_checkpoint(by: str, cluster: SlurmCluster) -> None:
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
    run = started(cell, names(), checkpoint_every="1h")
    if by == "Stop":
        Run(run.folder).stop()
    else:
        job = (run.folder / JOB_FILE).read_text()
        cluster.run("scancel", "--signal=TERM", "--batch", job)
    with pytest.raises((KeyboardInterrupt, LaunchError), match=r"stopped|scheduler"):
        nbmgpu.attach(run.id)
    (checkpoint,) = run.checkpoints
    assert 4 <= checkpoint.step < 60
    namespace = names()
    nbmgpu.run(cell, namespace, resume=run.id, gpus=2, cpu=True)
    torch.testing.assert_close(namespace["model"].weight, alone["model"].weight, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("--nodes 2", ["cuda:0", "cuda:1"] * 2),
        ("--nodes 3 --gpus 1", ["cuda:0"] * 3),
        ("", ["cuda:0", "cuda:1"]),
        ("--nodes 2 --cpu", ["cpu"] * 4),
        ("--nodes 2 --mesh dp=2,tp=2", ["cuda:0", "cuda:1"] * 2),
        ("--engine-option partition=main", ["cuda:0", "cuda:1"]),
    ],
)
def test_each_node_gives_the_gpus_that_slurm_lists(line: str, devices: list[str]) -> None:
    options = RunOptions.parse(f"--engine slurm {line}")
    placement = get_engine("slurm").place(options)
    assert list(placement.devices) == devices
    assert placement.nodes == (options.nodes or 1)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--gpus 3", "--gpus 3 is more than each node has.*--gpus 2"),
        ("--gpus 0,1", "--gpus 0,1 lists GPUs.*slurm chooses them.*--gpus 2"),
        ("--nodes 2 --mesh tp=3", "tp=3 has 3 ranks.*--nodes 1"),
        ("--strategy mp", "mp runs in one process.*fsdp"),
    ],
)
def test_what_nodes_do_not_have_is_refused(line: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"(?s){words}"):
        get_engine("slurm").place(RunOptions.parse(f"--engine slurm {line}"))


@matrix
@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_a_trainer_of_lightning_trains_on_all_nodes() -> None:
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
    nbmgpu.run(cell, ranks, **ON_TWO_NODES)
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
