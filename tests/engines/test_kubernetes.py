"""Runs on a played Kubernetes: its queue, lost pods, what it refuses; pods are real processes."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from kubernetes_cluster import CLAIM, IMAGE, NAMESPACE, KubernetesCluster
from played_runs import PLAYED, matrix, nothing_left  # noqa: F401
from several_nodes import WAIT, stopped_in_queue

import nbmgpu
from nbmgpu.engines.kubernetes import own_pod
from nbmgpu.engines.kubernetes.job_options import JobOptions
from nbmgpu.engines.kubernetes.job_state import job_state
from nbmgpu.engines.kubernetes.train_job import JobRequest, job_name
from nbmgpu.errors import LaunchError, OptionError


def refused(**options: Any) -> str:
    """Return the error of a run that does not start."""
    with pytest.raises((LaunchError, OptionError)) as caught:
        nbmgpu.run("1", {"__name__": "__main__"}, **PLAYED | options)
    return str(caught.value)


def test_a_run_that_is_queued_says_why_and_can_be_stopped() -> None:
    options = PLAYED | {"cpu": False}  # the nodes have no GPUs
    run = nbmgpu.run(WAIT, {"__name__": "__main__"}, background=True, **options)
    assert run is not None
    text = stopped_in_queue(run)
    assert re.fullmatch(
        rf"TrainJob {job_name(run.id)}: pod \S+ is pending \(Unschedulable\): "
        r"0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        text,
    )


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        (
            "suspends",
            True,
            "is suspended, as in a queue of Kueue. Pending: .*insufficient unused quota for cpu",
        ),
        (
            "quota",
            'pods "x" is forbidden: exceeded quota: team, requested: cpu=2, used: cpu=4',
            "has 0 of 2 pods. FailedCreate: .* exceeded quota: team",
        ),
    ],
)
def test_what_a_run_without_pods_waits_for(
    kubernetes_cluster: KubernetesCluster, attribute: str, value: object, words: str
) -> None:
    setattr(kubernetes_cluster, attribute, value)
    run = nbmgpu.run(WAIT, {"__name__": "__main__"}, background=True, **PLAYED)
    assert run is not None
    assert re.search(words, stopped_in_queue(run))


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling"}}},
            f"The image {IMAGE} cannot be had \\(ImagePullBackOff\\): Back-off pulling",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": '0/2 nodes are available: persistentvolumeclaim "x" not found.',
                    }
                ]
            },
            "The namespace has no claim x",
        ),
        (
            {
                "state": {
                    "waiting": {
                        "reason": "CreateContainerConfigError",
                        "message": "container has runAsNonRoot and image will run as root",
                    }
                }
            },
            "cannot be made .*runAsNonRoot",
        ),
    ],
    ids=["image", "claim", "container"],
)
def test_pods_that_will_never_run_end_the_run(
    kubernetes_cluster: KubernetesCluster, status: dict[str, Any], words: str
) -> None:
    kubernetes_cluster.waiting = status
    assert re.search(words, refused())


@pytest.mark.parametrize(
    ("request_", "answer", "words"),
    [
        (
            ("POST", "trainjobs"),
            (
                403,
                'trainjobs.trainer.kubeflow.org is forbidden: User "alice" cannot create resource',
            ),
            "(?s)cannot create resource.*create, get, list and delete on trainjobs.*namespace team",
        ),
        (("POST", "trainjobs"), (404, "the server could not find the requested resource"), "2.2"),
        (
            ("POST", "trainjobs"),
            (403, 'trainjobs "x" is forbidden: exceeded quota: team, requested: count=1'),
            "Kubernetes: .*exceeded quota",
        ),
        (
            ("POST", "trainjobs"),
            (400, "admission webhook denied the request: runtime x not found"),
            "Kubernetes: .*runtime x not found",
        ),
        (("GET", "persistentvolumeclaims"), (401, "Unauthorized"), "kubectl auth whoami"),
    ],
    ids=["rights", "no trainer", "quota", "webhook", "credentials"],
)
def test_what_the_cluster_refuses_is_said(
    kubernetes_cluster: KubernetesCluster,
    request_: tuple[str, str],
    answer: tuple[int, str],
    words: str,
) -> None:
    kubernetes_cluster.refusals[request_] = answer
    assert re.search(words, refused())


def test_pods_that_do_not_see_the_run_folder_end_the_run(
    kubernetes_cluster: KubernetesCluster,
) -> None:
    (kubernetes_cluster.hidden / "another").mkdir()
    text = refused(engine_option=["sub-path=another"])
    assert re.search("does not see the run folder .*: is mount .* own, and sub-path", text)


def test_a_trainer_that_is_too_old_is_said(kubernetes_cluster: KubernetesCluster) -> None:
    kubernetes_cluster.prunes = True
    assert "runtimePatches" in refused()


@pytest.mark.parametrize("with_events", [True, False])
def test_a_run_needs_no_right_to_read_claims_or_events(
    kubernetes_cluster: KubernetesCluster, with_events: bool
) -> None:
    refusals = kubernetes_cluster.refusals
    refusals["GET", "persistentvolumeclaims"] = (403, "persistentvolumeclaims is forbidden")
    if not with_events:
        refusals["GET", "events"] = (403, "events is forbidden")
    kubernetes_cluster.quota = "exceeded quota"
    run = nbmgpu.run(WAIT, {"__name__": "__main__"}, background=True, **PLAYED)
    assert run is not None
    assert ("exceeded quota" in stopped_in_queue(run)) is with_events


def own(mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the notebook's own pod, as JupyterHub starts it."""
    claim = {"name": "home", "persistentVolumeClaim": {"claimName": CLAIM}}
    container = {"name": "notebook", "image": IMAGE, "volumeMounts": mounts}
    spec = {"containers": [container], "volumes": [claim, {"name": "tmp", "emptyDir": {}}]}
    return {"metadata": {"name": socket.gethostname()}, "spec": spec}


def test_what_the_own_pod_tells_is_taken_and_said(
    kubernetes_cluster: KubernetesCluster,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "namespace").write_text(NAMESPACE)
    monkeypatch.setattr(own_pod, "IN_POD", tmp_path)
    mount = str(kubernetes_cluster.hidden)
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "home", "mountPath": mount}]
    kubernetes_cluster.own_pods[socket.gethostname()] = own(mounts)
    options, told = own_pod.complete(JobOptions())
    assert (options.image, options.claim, options.mount) == (IMAGE, CLAIM, mount)
    assert (options.namespace, options.python) == (NAMESPACE, sys.executable)
    assert told == (f"As in the notebook's own pod: image {IMAGE}, claim {CLAIM}, mount {mount}.")
    mounts[1]["subPath"] = "home/alice"
    kubernetes_cluster.own_pods[socket.gethostname()] = own(mounts)
    assert own_pod.complete(JobOptions())[0].sub_path == "home/alice"
    kubernetes_cluster.own_pods[socket.gethostname()] = own([])
    with pytest.raises(OptionError, match=r"(?s)which claim.*--engine-option claim="):
        own_pod.complete(JobOptions())
    refusals = kubernetes_cluster.refusals
    refusals["GET", "pods"] = (403, 'pods "x" is forbidden: User "alice" cannot get resource')
    with pytest.raises(OptionError, match=r"(?s)which image.*it may not: .*cannot get resource"):
        own_pod.complete(JobOptions())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"image": ""}, "(?s)which image.*--engine-option image="),
        (
            {"claim": "none"},
            "(?s)Namespace team has no PersistentVolumeClaim none.*kubectl get pvc",
        ),
        ({"mount": "/elsewhere"}, "(?s)The folder of runs .* is not .* /elsewhere.*NBMGPU_RUNS"),
        ({"context": "none"}, "(?s)knows no Kubernetes cluster.*kubectl config get-contexts"),
        ({"clam": "x"}, "--engine-option claim="),
        ({"claim": "My_Claim"}, "--engine-option claim=my-claim"),
        ({"memory": "much"}, "memory=64Gi"),
        ({"mount": "home"}, "mount=/home/jovyan"),
        ({"tolerations": "spot:Never"}, "(?s)Effects: NoSchedule.*nvidia.com/gpu=present"),
        ({"node-selector": "a100"}, "node-selector=name=value"),
        ({"cpus-per-rank": "0"}, "cpus-per-rank=4"),
    ],
)
def test_options_are_checked_before_anything_is_created(
    kubernetes_cluster: KubernetesCluster, values: dict[str, str], words: str
) -> None:
    before = len(kubernetes_cluster.requests)
    assert re.search(words, refused(engine_option=[f"{k}={v}" for k, v in values.items()]))
    assert "POST" not in [method for method, _ in kubernetes_cluster.requests[before:]]


def test_how_many_gpus_pods_get_has_to_be_said() -> None:
    assert re.search("(?s)how many GPUs.*--cpu.*--gpus 8", refused(gpus=None, cpu=False))


def request(**options: Any) -> dict[str, Any]:
    """Return the manifest of a TrainJob."""
    given = {"claim": CLAIM, "mount": "/home/jovyan", "image": IMAGE, "namespace": NAMESPACE}
    wanted = JobOptions.of(given | options)
    run = "20261127-160000-123ab"
    return JobRequest(run, Path("/home/jovyan/runs") / run, 2, 8, 4, 600.0, wanted).manifest()


def test_the_manifest_is_a_train_job() -> None:
    manifest = request(
        **{
            "sub-path": "alice",
            "memory": "64Gi",
            "queue": "gpus",
            "priority": "high",
            "tolerations": "nvidia.com/gpu=present:NoSchedule;spot",
            "node-selector": "accelerator=a100;zone=b",
            "image-pull-secrets": "registry",
            "service-account": "trainer",
            "env": "NCCL_DEBUG=INFO",
            "runtime": "torch-own",
        }
    )
    model = TrainerV1alpha1TrainJob.from_dict(manifest)
    assert model is not None
    assert model.to_dict() == manifest  # unknown fields would be missing
    assert len(manifest["metadata"]["name"]) + len("-node-0-12") <= 63
    labels = manifest["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "gpus"
    assert labels["kueue.x-k8s.io/priority-class"] == "high"
    spec = manifest["spec"]
    assert spec["activeDeadlineSeconds"] == 900
    assert spec["trainer"]["resourcesPerNode"]["limits"] == {
        "cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "4",
    }  # fmt: skip
    assert {"name": "NCCL_DEBUG", "value": "INFO"} in spec["trainer"]["env"]
    (patch,) = spec["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    assert pod["tolerations"] == [
        {
            "key": "nvidia.com/gpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"
        },
        {"key": "spot", "operator": "Exists"},
    ]  # fmt: skip
    assert pod["containers"][0]["volumeMounts"][0] == {
        "name": "nbmgpu-shared", "mountPath": "/home/jovyan", "subPath": "alice",
    }  # fmt: skip
    assert pod["securityContext"] == {"runAsUser": os.getuid(), "runAsGroup": os.getgid()}


def test_only_what_is_on_the_volume_is_named_in_another_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/home/jovyan")
    monkeypatch.setattr(sys, "path", ["/opt/conda/lib/python3.11", "/home/jovyan/project"])
    variables = {each["name"]: each.get("value") for each in request()["spec"]["trainer"]["env"]}
    assert variables["PYTHONPATH"] == "/home/jovyan/project"
    assert variables["HOME"] == "/home/jovyan"
    monkeypatch.setenv("HOME", "/root")
    assert "HOME" not in [each["name"] for each in request()["spec"]["trainer"]["env"]]


def test_a_deadline_is_named() -> None:
    condition = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}
    condition["message"] = "TrainJob was active longer than specified deadline"
    state = job_state({"status": {"conditions": [condition]}}, [], 2)
    assert not state.alive
    assert state.error == (
        "The TrainJob has failed (DeadlineExceeded): TrainJob was active longer than specified "
        "deadline"
    )


def test_nothing_of_it_is_imported_before_it_is_used() -> None:
    code = "import sys, nbmgpu.engines.kubernetes.engine; print('kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_missing_client_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert "pip install 'nbmgpu[kubernetes]'" in refused()
