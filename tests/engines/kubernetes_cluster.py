"""A played Kubernetes: an API server on loopback, and pods that are real processes of this machine.

It has what runs use: TrainJobs, pods, events and claims.  A TrainJob's pods get the environment
that Kubeflow's torch plugin gives (``PET_*``, ``JOB_COMPLETION_INDEX``), and see of the tests'
folder only what their volumes mount.  Answers have the shapes that the API documents.
"""

from __future__ import annotations

import json
import re
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from kubernetes_pod import CLAIM, IMAGE, MESSAGE, NAMESPACE, Pod

JOBS = f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{NAMESPACE}/trainjobs"
CORE = f"/api/v1/namespaces/{NAMESPACE}"

PROFILE = """
[kubernetes_played]
engine = "kubernetes"

[kubernetes_played.engine_option]
claim = "{claim}"
mount = "{mount}"
image = "{image}"
"""


@contextmanager
def played_kubernetes(shared: Path) -> Iterator[KubernetesCluster]:
    """Play a cluster; kernels find it meanwhile, by the engine profile ``kubernetes_played``.

    Args:
        shared: the folder that is the volume of the claim.
    """
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        cluster = KubernetesCluster(Path(name), shared)
        profiles = Path(name, "nbmgpu", "engines.toml")
        profiles.parent.mkdir()
        profiles.write_text(PROFILE.format(claim=CLAIM, mount=shared, image=IMAGE))
        patch.setenv("KUBECONFIG", str(cluster.config))
        patch.setenv("JUPYTER_CONFIG_DIR", name)
        try:
            yield cluster
        finally:
            cluster.stop()


def why_not() -> str:
    """Return why pods cannot be played here; empty if they can."""
    command = ["unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    probe = subprocess.run(command, capture_output=True, check=False)
    return "" if probe.returncode == 0 else "unshare --uts --mount --pid is not permitted"


class KubernetesCluster:
    """The API server, and what it knows.

    Attributes:
        folder: of its files, which pods do not see.
        hidden: the folder of which pods see only what they mount.
        jobs, pods: what there is.
        events: of the namespace, the newest last.
        refusals: what to answer to a method and a resource instead: status and message.
        quota: why no pod may be made; empty if they may.
        waiting: status of new pods, whose containers are not started then; empty to start them.
        requests: method, path and query of each request.
    """

    def __init__(self, folder: Path, hidden: Path) -> None:
        self.folder, self.hidden = folder, hidden
        self._in_pod = Path(MESSAGE).exists()  # these tests may run in a real one
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: list[Pod] = []
        self.ports: dict[str, int] = {}
        self.own_pods: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []
        self.reset()
        self.token = secrets.token_hex(16)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.config = folder / "kubeconfig"
        server = f"http://127.0.0.1:{self._server.server_port}"
        self.config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "played",
                    "clusters": [{"name": "played", "cluster": {"server": server}}],
                    "users": [{"name": "alice", "user": {"token": self.token}}],
                    "contexts": [
                        {
                            "name": "played",
                            "context": {
                                "cluster": "played",
                                "user": "alice",
                                "namespace": NAMESPACE,
                            },
                        }
                    ],
                }
            )
        )

    def reset(self) -> None:
        """Have everything work from now on."""
        self.events: list[dict[str, Any]] = []
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        self.quota = ""
        self.waiting: dict[str, Any] = {}
        self.suspends = self.prunes = False

    def stop(self) -> None:
        """End all pods and the server."""
        for pod in [*self.pods]:
            pod.signal(signal.SIGKILL)
        self._server.shutdown()
        self._server.server_close()
        if not self._in_pod:
            Path(MESSAGE).unlink(missing_ok=True)

    def event(self, kind: str, name: str, reason: str, message: str) -> None:
        """Add a warning about an object."""
        self.events.append(
            {
                "metadata": {"name": f"{name}.{len(self.events)}", "namespace": NAMESPACE},
                "involvedObject": {"kind": kind, "name": name, "namespace": NAMESPACE},
                "type": "Warning", "reason": reason, "message": message,
                "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
        )  # fmt: skip

    def delete(self, name: str) -> None:
        """Delete a TrainJob, as kubectl does."""
        del self.jobs[name]
        for pod in [each for each in self.pods if each.job == name]:
            pod.remove()

    def _create(self, job: dict[str, Any]) -> dict[str, Any]:
        model = TrainerV1alpha1TrainJob.from_dict(job)
        assert model is not None
        assert model.to_dict() == job, "the schema does not know a part of the TrainJob"
        name = job["metadata"]["name"]
        job["metadata"]["uid"] = secrets.token_hex(16)
        if self.prunes:
            del job["spec"]["runtimePatches"]
        self.jobs[name] = job
        if self.suspends:
            now = {"lastTransitionTime": "2026-01-01T00:00:00Z", "message": "TrainJob is suspended"}
            condition = {"type": "Suspended", "status": "True", "reason": "Suspended", **now}
            job["status"] = {"conditions": [condition]}
            message = "couldn't assign flavors to pod set node: insufficient unused quota for cpu"
            self.event("Workload", f"trainjob-{name}-1a2b3", "Pending", message)
        elif self.quota:
            self.event("Job", f"{name}-node-0", "FailedCreate", f"Error creating: {self.quota}")
        elif not self.prunes:
            with socket.create_server(("127.0.0.1", 0)) as server:
                self.ports[name] = server.getsockname()[1]
            for index in range(job["spec"]["trainer"]["numNodes"]):
                self._add_pod(Pod(self, job, index))
        return job

    def _add_pod(self, pod: Pod) -> None:
        self.pods.append(pod)
        gpus = pod.trainer["resourcesPerNode"]["limits"].get("nvidia.com/gpu")
        if gpus:
            message = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
            scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            pod.status["conditions"] = [scheduled | {"message": message}]
        elif self.waiting:
            pod.status |= self.waiting
            pod.node = "node1" if "state" in self.waiting else ""
        else:
            pod.start()

    def _answer(self, method: str, path: str, query: str, body: Any) -> tuple[int, Any]:
        """Return the status and the content of the answer to a request."""
        self.requests.append((method, f"{path}?{query}"))
        resource = next(
            (each for each in ("trainjobs", "persistentvolumeclaims", "pods", "events")
             if each in path), ""
        )  # fmt: skip
        if refusal := self.refusals.get((method, resource)):
            return refusal
        if path == JOBS and method == "POST":
            return 201, self._create(body)
        if path == JOBS:
            return 200, {"items": [*self.jobs.values()], "metadata": {}}
        if path.startswith(JOBS):
            name = path.rpartition("/")[2]
            if name not in self.jobs:
                return 404, f'trainjobs.trainer.kubeflow.org "{name}" not found'
            job = self.jobs[name]
            if method == "DELETE":
                self.delete(name)
                return 200, {"kind": "Status", "status": "Success"}
            return 200, job
        if path == f"{CORE}/pods":
            found = re.search("jobset-name(?:=|%3D)([a-z0-9-]+)", query)
            assert found, query
            items = [pod.shown() for pod in [*self.pods] if pod.job == found[1]]
            return 200, {"kind": "PodList", "items": items}
        if path.startswith(f"{CORE}/pods/"):
            name = path.rpartition("/")[2]
            known = self.own_pods.get(name)
            return (200, known) if known else (404, f'pods "{name}" not found')
        if path == f"{CORE}/events":
            return 200, {"kind": "EventList", "items": self.events}
        if path.startswith(f"{CORE}/persistentvolumeclaims/"):
            name = path.rpartition("/")[2]
            if name == CLAIM:
                return 200, {"kind": "PersistentVolumeClaim", "metadata": {"name": name}}
            return 404, f'persistentvolumeclaims "{name}" not found'
        return 404, "the server could not find the requested resource"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size) or "null")
                path, _, query = self.path.partition("?")
                if self.headers.get("Authorization") != f"Bearer {cluster.token}":
                    status, content = 401, "Unauthorized"
                else:
                    status, content = cluster._answer(self.command, path, query, body)
                if isinstance(content, str):
                    content = {"kind": "Status", "status": "Failure", "message": content}
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

            do_GET: Callable[[], None] = answer
            do_POST: Callable[[], None] = answer
            do_DELETE: Callable[[], None] = answer

        return Handler
