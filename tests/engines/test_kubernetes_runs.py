"""Runs in pods of a played Kubernetes, which are real processes: numbers, ends, lost pods."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from idioms.comparison import assert_equal
from idioms.tables import BY_NAME
from kubernetes_cluster import KubernetesCluster
from played_runs import PLAYED, matrix, nothing_left  # noqa: F401
from several_nodes import WAIT, started, wait

import nbmgpu
from nbmgpu.engines.kubernetes.node_files import VARIABLES_FILE
from nbmgpu.engines.kubernetes.train_job import job_name
from nbmgpu.errors import LaunchError, RankKilledError
from nbmgpu.runs.run import Run


def test_the_numbers_are_those_of_one_device(
    kubernetes_cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    result = assert_equal(BY_NAME["AdamW"], strategy="ddp", **PLAYED)
    assert [view.host for view in result.run.view.ranks] == ["node1"] * 2 + ["node2"] * 2
    assert not (result.run.folder / VARIABLES_FILE).exists()


def test_the_cell_has_the_notebooks_variables_but_no_manifest_does(
    kubernetes_cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "secret")
    cell = "import os\nfound = [os.environ.get(n) for n in names]\n" + WAIT
    names = ["WANDB_API_KEY", "JUPYTERHUB_API_TOKEN", "OF_THE_JOB", "PET_NNODES", "PYTHONPATH"]
    monkeypatch.setenv("PYTHONPATH", "/as/in/the/notebook")
    namespace = {"__name__": "__main__", "names": names}
    options = ["env=OF_THE_JOB=1;OTHER=2"]
    run = started("kubernetes_played", cell, namespace, engine_option=options)
    assert "secret" not in str(kubernetes_cluster.jobs[job_name(run.id)])
    Run(run.folder).stop()
    with pytest.raises(KeyboardInterrupt, match="back in the notebook"):
        nbmgpu.attach(run.id)
    assert namespace["found"] == ["secret", None, "1", None, "/as/in/the/notebook"]


OOM = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"reason": "Evicted", "message": "The node was low on resource: memory."},
            "was evicted: The node was low on resource: memory",
        ),
        ({"state": OOM}, r"ran out of memory \(OOMKilled\); its limit is 4Gi"),
        (
            {
                "conditions": [
                    {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
                ]
            },
            "is lost: its node is gone",
        ),
    ],
    ids=["evicted", "out of memory", "node gone"],
)
@pytest.mark.parametrize("index", [0, 1])
def test_a_lost_pod_is_named_with_its_node_and_the_reason(
    kubernetes_cluster: KubernetesCluster, index: int, status: dict[str, Any], words: str
) -> None:
    run = started("kubernetes_played", engine_option=["memory=4Gi"])
    (pod,) = [each for each in kubernetes_cluster.pods if each.index == index]
    pod.evict(status)
    with pytest.raises((LaunchError, RankKilledError)) as caught:
        nbmgpu.attach(run.id)
    assert re.search(f"(?i)pod {pod.name} on node node{index + 1} {words}", str(caught.value))


@matrix
def test_a_head_that_is_killed_ends_the_run_also_without_a_kernel(
    kubernetes_cluster: KubernetesCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started("kubernetes_played")
    monkeypatch.setenv("KUBECONFIG", "/none")  # nobody sees why
    pod = next(each for each in kubernetes_cluster.pods if each.index == 0)
    pod.signal(signal.SIGKILL)
    wait(lambda: pod.shown() and pod.restarts == 1)
    events = run.events_path("launcher")
    wait(lambda: "The first pod of the job" in events.read_text())
    monkeypatch.undo()
    with pytest.raises(LaunchError, match="The first pod of the job"):
        nbmgpu.attach(run.id)


def test_a_job_that_is_deleted_fails_the_run(kubernetes_cluster: KubernetesCluster) -> None:
    run = started("kubernetes_played")
    kubernetes_cluster.delete(job_name(run.id))
    with pytest.raises((LaunchError, KeyboardInterrupt, RankKilledError), match="scheduler"):
        nbmgpu.attach(run.id)


@matrix
def test_a_pod_that_is_preempted_leaves_time_for_a_checkpoint(
    kubernetes_cluster: KubernetesCluster,
) -> None:
    run = started("kubernetes_played", TRAINING, training(), checkpoint_every="1h")
    next(each for each in kubernetes_cluster.pods if each.index == 1).remove()
    with pytest.raises(LaunchError, match="scheduler"):
        nbmgpu.attach(run.id)
    assert len(run.checkpoints) == 1


TRAINING = """
import time, torch
for step in range(300):
    opt.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    opt.step()
    time.sleep(0.1)
    if step == 3:
        print("ready", flush=True)
"""


def training() -> dict[str, Any]:
    model = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    return {"__name__": "__main__", "model": model, "opt": opt}


def test_force_stop_deletes_the_job_at_once(kubernetes_cluster: KubernetesCluster) -> None:
    run = started("kubernetes_played")
    run.stop(force=True)
    assert not kubernetes_cluster.jobs
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.attach(run.id)


KERNEL = """
import nbmgpu
names = {"__name__": "__main__", "value": [0]}
nbmgpu.run("value[0] = 17", names, background=True, engine="kubernetes_played", gpus=1, cpu=True)
"""


@matrix
def test_a_job_outlives_its_kernel_and_a_later_run_deletes_it(
    kubernetes_cluster: KubernetesCluster,
) -> None:
    before = set(os.listdir(os.environ["NBMGPU_RUNS"]))
    subprocess.run([sys.executable, "-c", KERNEL], check=True, timeout=100)
    (name,) = set(os.listdir(os.environ["NBMGPU_RUNS"])) - before
    run = Run(Path(os.environ["NBMGPU_RUNS"], name))

    def ended() -> bool:
        run.refresh()
        return run.view.ended is not None

    wait(ended)
    assert [*kubernetes_cluster.jobs] == [job_name(run.id)]
    nbmgpu.run("1", {"__name__": "__main__"}, **PLAYED | {"nodes": 1, "gpus": 1})
    assert not kubernetes_cluster.jobs
