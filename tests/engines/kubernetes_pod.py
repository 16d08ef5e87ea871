"""A pod of a played Kubernetes: its container is a process of this machine."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from kubernetes_cluster import KubernetesCluster

NAMESPACE = "team"
CLAIM = "claim-alice"
IMAGE = "registry.example/notebook:1"

MESSAGE = "/dev/termination-log"
"""Where a container writes why it has ended."""

START = """
hostname "$1" && mount --bind "$2" /etc/hosts && mount --bind "$3" /mnt
mount -t tmpfs tmpfs "$3" && mount -t tmpfs -o size=64m tmpfs /dev/shm
eval "$4"
cd / && shift 4 && exec "$@"
"""
"""Makes a container of a process: host name, names of pods, hidden folder, volumes."""


class Pod:
    """A pod with one container."""

    def __init__(self, cluster: KubernetesCluster, job: dict[str, Any], index: int) -> None:
        self.cluster, self.index = cluster, index
        self.job: str = job["metadata"]["name"]
        self.name = f"{self.job}-node-0-{index}-{secrets.token_hex(3)[:5]}"
        self.node = ""
        self.trainer = job["spec"]["trainer"]
        patches = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
        self.spec = patches["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        self.process: subprocess.Popen[bytes] | None = None
        self.status: dict[str, Any] = {"phase": "Pending"}
        self.last: dict[str, Any] = {}
        self.restarts = 0
        self.leaving = False

    def start(self) -> None:
        """Start the container on a node of the pod's own."""
        self.node = f"node{self.index + 1}"
        volumes = {each["name"]: each for each in self.spec["volumes"]}
        self.message = self.cluster.folder / f"{self.name}.message"
        self.message.touch()
        mounts = [f"touch {MESSAGE} && mount --bind {self.message} {MESSAGE}"]
        for mount in self.spec["containers"][0]["volumeMounts"]:
            volume, path = volumes[mount["name"]], mount["mountPath"]
            if "emptyDir" in volume:
                mounts.append(f"mount -t tmpfs tmpfs {path}")
            else:
                assert volume["persistentVolumeClaim"]["claimName"] == CLAIM
                source = f"/mnt/{mount.get('subPath', '')}"
                mounts.append(f"mkdir -p {path} && mount --bind {source} {path}")
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOSTNAME": f"{self.job}-node-0-{self.index}",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_PORT": "tcp://127.0.0.1:443",
            "JOB_COMPLETION_INDEX": str(self.index),
            "PET_NNODES": str(self.trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(self.trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(self.index),
            "PET_MASTER_ADDR": f"{self.job}-node-0-0.{self.job}",
            "PET_MASTER_PORT": str(self.cluster.ports[self.job]),
        }
        fields = {"spec.nodeName": self.node, "metadata.name": self.name}
        for each in self.trainer["env"]:
            source = each.get("valueFrom")
            value = fields[source["fieldRef"]["fieldPath"]] if source else each["value"]
            assert each["name"] not in variables or not each["name"].startswith("PET_")
            variables[each["name"]] = value
        hosts = self.cluster.folder / f"{self.job}.hosts"
        hosts.write_text(f"127.0.0.1 localhost\n127.0.0.1 {variables['PET_MASTER_ADDR']}\n")
        with (self.cluster.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc"),
                    *("--kill-child", "sh", "-ec", START, "start", variables["HOSTNAME"]),
                    *(str(hosts), str(self.cluster.hidden), "\n".join(mounts)),
                    *self.trainer["command"],
                    *self.trainer["args"],
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables,
                start_new_session=True,
            )  # fmt: skip

    def signal(self, sig: signal.Signals) -> None:
        """Signal the first process of the container, as a kubelet does."""
        if self.process is None or self.process.poll() is not None:
            return
        if sig == signal.SIGKILL:
            self.process.kill()
            return
        with suppress(psutil.NoSuchProcess, IndexError):
            psutil.Process(self.process.pid).children()[0].send_signal(sig)

    def evict(self, status: dict[str, Any]) -> None:
        """End it at once, as a kubelet does under pressure; ``status`` is what it tells then."""
        self.status = {"phase": "Failed", **status}
        self.signal(signal.SIGKILL)

    def remove(self) -> None:
        """Delete it: it has its grace period to end."""
        if self.leaving:
            return
        self.leaving = True
        self.signal(signal.SIGTERM)

        def end() -> None:
            if self.process is not None:
                try:
                    self.process.wait(self.spec["terminationGracePeriodSeconds"])
                except subprocess.TimeoutExpired:
                    self.process.kill()
                    self.process.wait()
            self.cluster.pods.remove(self)

        threading.Thread(target=end, daemon=True).start()

    def poll(self) -> None:
        """Do what a kubelet does: see how the container is, and start it again if it has failed."""
        if self.process is None or self.status["phase"] == "Failed":
            return
        code = self.process.poll()
        if code is None:
            self.status["phase"] = "Running"
        elif code == 0 or self.leaving:
            self.status["phase"] = "Succeeded" if code == 0 else "Failed"
        else:
            said = {"message": self.message.read_text()}
            self.last = {"terminated": {"exitCode": abs(code), "reason": "Error", **said}}
            self.restarts += 1
            self.start()

    def shown(self) -> dict[str, Any]:
        """Return it as the API does."""
        self.poll()
        running = self.status["phase"] == "Running"
        state = {"running": {}} if running else self.status.get("state", {})
        container = {
            "name": "node", "image": self.trainer["image"], "imageID": "", "ready": running,
            "restartCount": self.restarts, "state": state, "lastState": self.last,
        }  # fmt: skip
        status = {key: value for key, value in self.status.items() if key != "state"}
        if self.node:
            status["containerStatuses"] = [container]
        return {
            "metadata": {
                "name": self.name, "namespace": NAMESPACE,
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    "jobset.sigs.k8s.io/jobset-name": self.job,
                    "batch.kubernetes.io/job-completion-index": str(self.index),
                },
            },
            "spec": {
                "nodeName": self.node or None,
                "containers": [
                    {
                        "name": "node",
                        "image": self.trainer["image"],
                        "resources": self.trainer["resourcesPerNode"],
                    }
                ],
            },
            "status": status,
        }  # fmt: skip
