"""Runs as jobs of a real Slurm: its queue, its limits, its GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from several_nodes import ON_TWO_NODES, WAIT, children, started, stopped_in_queue, wait
from slurm_cluster import SlurmCluster

import nbmgpu
from nbmgpu.engines.registry import get_engine
from nbmgpu.engines.slurm.commands import GONE, job_state
from nbmgpu.engines.slurm.job import JOB_FILE
from nbmgpu.errors import LaunchError, OptionError, RankKilledError
from nbmgpu.options.run_options import RunOptions

matrix = pytest.mark.matrix("nbmgpu/engines")

ON_SLURM = ON_TWO_NODES | {"engine": "slurm"}


@pytest.fixture(autouse=True)
def nothing_left(slurm_cluster: SlurmCluster) -> Iterator[None]:
    """After each test, neither jobs nor processes of them are left."""
    before = set(children())
    yield
    wait(lambda: not slurm_cluster.jobs() and not set(children()) - before, 30)


def test_a_run_that_is_queued_says_why_and_can_be_stopped(slurm_cluster: SlurmCluster) -> None:
    job = ("--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 60")
    blocker = slurm_cluster.run("sbatch", "--parsable", *job).strip()
    wait(lambda: job_state(int(blocker)).name == "RUNNING")
    run = nbmgpu.run(WAIT, {"__name__": "__main__"}, background=True, **ON_SLURM)
    assert run is not None
    try:
        text = stopped_in_queue(run)
    finally:
        slurm_cluster.run("scancel", blocker)
    assert re.fullmatch(r"Slurm job \d+ is pending \(\w+\), place 1 in the queue.*", text)


def test_a_job_that_is_cancelled_fails_the_run(slurm_cluster: SlurmCluster) -> None:
    run = started("slurm")
    slurm_cluster.run("scancel", (run.folder / JOB_FILE).read_text())
    with pytest.raises(LaunchError, match="was cancelled, by scancel"):
        nbmgpu.attach(run.id)


@matrix
@pytest.mark.parametrize(
    ("options", "reason"), [({"nodes": 3}, "PartitionNodeLimit"), ({"gpus": 20}, "PartitionConfig")]
)
def test_a_job_that_can_never_start_is_cancelled(options: dict[str, int], reason: str) -> None:
    with pytest.raises(LaunchError, match=rf"can never start \({reason}\): .*It is cancelled"):
        nbmgpu.run("1", {"__name__": "__main__"}, **ON_SLURM | options)


def test_modules_that_cannot_be_loaded_end_the_job() -> None:
    option = ["modules=it's here"]
    with pytest.raises(LaunchError, match=r"`module load it's` has failed on node node1"):
        nbmgpu.run("1", {"__name__": "__main__"}, engine_option=option, **ON_SLURM)


@matrix
def test_a_lost_first_node_is_named_though_the_head_was_there(slurm_cluster: SlurmCluster) -> None:
    run = started("slurm")
    for process in slurm_cluster.processes_of("node1"):
        process.kill()
    slurm_cluster.run("scontrol", "update", "NodeName=node1", "State=DOWN", "Reason=lost")
    try:
        with pytest.raises(RankKilledError, match="lost the first node of the job, node1"):
            nbmgpu.attach(run.id)
    finally:
        slurm_cluster.start_node("node1")
        slurm_cluster.run("scontrol", "update", "NodeName=node1", "State=RESUME")


TRAINING = """
import time, torch
model = torch.nn.Linear(3, 1)
opt = torch.optim.Adam(model.parameters())
for step in range(1000):
    opt.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    opt.step()
    time.sleep(0.1)
    if step == 3:
        print("ready", flush=True)
"""


@matrix
def test_a_job_that_is_preempted_writes_a_checkpoint(slurm_cluster: SlurmCluster) -> None:
    """Slurm then signals the launchers of the nodes, and not the head."""
    run = started("slurm", TRAINING, checkpoint_every="1h", exact="never")
    job = ("--nodes=2", "--exclusive", "--partition=urgent", "--output=/dev/null", "--wrap=true")
    slurm_cluster.run("sbatch", *job)
    with pytest.raises(LaunchError, match="Slurm has preempted the job"):
        nbmgpu.attach(run.id)
    (checkpoint,) = run.checkpoints
    assert checkpoint.step >= 4


@matrix
def test_the_time_limit_of_a_job_writes_a_checkpoint(slurm_cluster: SlurmCluster) -> None:
    run = started("slurm", TRAINING, checkpoint_every="1h", exact="never")
    job = (run.folder / JOB_FILE).read_text()
    slurm_cluster.run("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    with pytest.raises(LaunchError, match="time limit of 00:01:00"):
        nbmgpu.attach(run.id)
    (checkpoint,) = run.checkpoints
    assert checkpoint.step >= 4


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
        nbmgpu.run("1", {"__name__": "__main__"}, engine_option=[option], **ON_SLURM)


def test_a_job_outlives_what_has_submitted_it(slurm_cluster: SlurmCluster) -> None:
    run = started("slurm")
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
