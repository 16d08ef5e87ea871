"""The manifest of a run's TrainJob (``trainer.kubeflow.org/v1alpha1``)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmgpu.rank.command_line import start_variables

from .job_options import JobOptions

if TYPE_CHECKING:
    from nbmgpu.runs.record import RunRecord

GROUP, VERSION, PLURAL = "trainer.kubeflow.org", "v1alpha1", "trainjobs"

MANAGER = "nbmgpu"
LABELS = {"app.kubernetes.io/managed-by": MANAGER}

NODE = "node"
"""Kubeflow's name of the replicated job, and of its container, in which ranks run."""

NODE_NAME, POD_NAME = "NBMGPU_NODE_NAME", "NBMGPU_POD_NAME"
"""Environment variables with the names of a pod's machine, and of the pod."""

GRACE = 90
"""Seconds that a pod has to end: rank 0 has a minute for its results."""

DEADLINE = 300
"""Seconds that the job may take longer than ``--timeout``: for its image, and to end."""

SCRIPT = """
failed="$1/failed-$JOB_COMPLETION_INDEX" log="$1/logs/node-$JOB_COMPLETION_INDEX.log"
if ! [ -d "$1" ]; then
  echo "Pod $HOSTNAME does not see the run folder $1: is mount the notebook's own, and sub-path?" |
    tee /dev/termination-log
  exit 1
fi
[ -e "$failed" ] && exit 0
"$0" -c "import nbmgpu" >>"$log" 2>&1 || { touch "$failed"; exit 1; }
exec "$0" -m nbmgpu.engines.kubernetes.node "$@" >>"$log" 2>&1
"""
"""What each pod runs, with these arguments of its shell: Python, run folder, variables.  Where that
Python cannot start, a file says so to the others; a container that is started again does nothing.
"""


@dataclass(frozen=True)
class JobRequest:
    """A TrainJob that is to be created.

    Attributes:
        run_id, folder: of the run.
        nodes: number of pods.
        cores: of each pod.
        gpus: of each pod.
        timeout: ``--timeout``, in seconds; None without one.
        options: all of them, also those that were guessed.
    """

    run_id: str
    folder: Path
    nodes: int
    cores: int
    gpus: int
    timeout: float | None
    options: JobOptions

    @classmethod
    def of(cls, record: RunRecord, folder: Path, options: JobOptions) -> JobRequest:
        """Return the request for a run."""
        ranks = record.ranks_per_node
        gpus = sum(device != "cpu" for device in record.devices[:ranks])
        cores = ranks * record.threads
        return cls(record.id, folder, record.nodes, cores, gpus, record.options.timeout, options)

    @property
    def name(self) -> str:
        """The TrainJob's name."""
        return job_name(self.run_id)

    def manifest(self) -> dict[str, Any]:
        """Return the TrainJob as the API takes it."""
        options = self.options
        deadline = {"activeDeadlineSeconds": int(self.timeout) + DEADLINE} if self.timeout else {}
        job = {"name": NODE, "template": {"spec": {"template": {"spec": self._pod()}}}}
        patch = {"template": {"spec": {"replicatedJobs": [job]}}}
        return {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "TrainJob",
            "metadata": {
                "name": self.name,
                "namespace": options.namespace,
                "labels": {**LABELS, **options.labels},
            },
            "spec": {
                "runtimeRef": {"name": options.runtime},
                "trainer": self._trainer(),
                "runtimePatches": [
                    {"manager": f"{MANAGER}.kernel/engine", "trainingRuntimeSpec": patch}
                ],
                **deadline,
            },
        }

    def _trainer(self) -> dict[str, Any]:
        """Return what the container runs, with which resources."""
        options = self.options
        amounts = {"cpu": str(self.cores)}
        if options.memory:
            amounts["memory"] = options.memory
        if self.gpus:
            amounts[options.gpu_resource] = str(self.gpus)
        variables, restored = self._start_variables()
        environment: list[dict[str, Any]] = [
            {"name": name, "value": value} for name, value in variables.items()
        ]
        for name, path in {NODE_NAME: "spec.nodeName", POD_NAME: "metadata.name"}.items():
            environment.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
        arguments = [str(self.folder), f"--restore-variables={restored}"]
        return {
            "image": options.image,
            "command": ["sh", "-c", SCRIPT, options.python],
            "args": arguments,
            "env": environment,
            "numNodes": self.nodes,
            "numProcPerNode": 1,
            # Requests that equal their limits: such pods are evicted last.
            "resourcesPerNode": {"requests": amounts, "limits": amounts},
        }

    def _start_variables(self) -> tuple[dict[str, str], str]:
        """Return variables of the container, and what ``restore_variables`` takes."""
        variables, restored = start_variables(self.options.python)
        paths = variables["PYTHONPATH"].split(os.pathsep)  # else another image has its own Python
        shared = [path for path in paths if is_below(path, self.options.mount)]
        variables["PYTHONPATH"] = os.pathsep.join(shared)
        if is_below(
            os.environ.get("HOME", ""), self.options.mount
        ):  # an image may not know the user
            names = ("HOME", "USER", "LOGNAME")
            variables |= {name: os.environ[name] for name in names if name in os.environ}
        return {**variables, **self.options.pods.env}, restored

    def _pod(self) -> dict[str, Any]:
        """Return what is patched in the pods: volumes, user, and where they may run."""
        options = self.options
        sub_path = {"subPath": options.sub_path} if options.sub_path else {}
        mounts = [
            {"name": "nbmgpu-shared", "mountPath": options.mount, **sub_path},
            {"name": "nbmgpu-memory", "mountPath": "/dev/shm"},  # loader workers and NCCL need it
        ]
        volumes = [
            {"name": "nbmgpu-shared", "persistentVolumeClaim": {"claimName": options.claim}},
            {"name": "nbmgpu-memory", "emptyDir": {"medium": "Memory"}},
        ]
        return {
            "containers": [{"name": NODE, "volumeMounts": mounts}],
            "volumes": volumes,
            # Only their owner can read the files of a run.
            "securityContext": {"runAsUser": os.getuid(), "runAsGroup": os.getgid()},
            "terminationGracePeriodSeconds": GRACE,
            **options.pods.manifest(),
        }


def job_name(run_id: str) -> str:
    """Return the name of the TrainJob of a run."""
    return f"nbmgpu-{run_id}"


def is_below(path: str | Path, folder: str) -> bool:
    """Return whether ``path`` is ``folder``, or below it."""
    return Path(path).is_relative_to(folder)
