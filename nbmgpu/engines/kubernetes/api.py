"""The part of the Kubernetes API that runs need, through the official client."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbmgpu.errors import LaunchError, format_message

from .train_job import GROUP, PLURAL, VERSION

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

TIMEOUT = (5, 30)
"""Seconds for a connection, and for an answer."""

IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds what its service account may use."""

JOB_LABEL = "jobset.sigs.k8s.io/jobset-name"
"""Label of pods: the name of their TrainJob."""

MISSING = "--engine kubernetes needs the official client of Kubernetes"
NO_CLUSTER = "This machine knows no Kubernetes cluster: {error}"
WAYS = (
    "In a pod, its service account is used (JupyterHub: singleuser.serviceAccountName); elsewhere "
    "a kubeconfig file"
)
NO_TRAINER = "The cluster has no TrainJobs"
TRAINER = "Kubeflow Trainer 2.2 or newer has to be installed there"
RIGHTS = (
    "nbmgpu needs create, get, list and delete on trainjobs.trainer.kubeflow.org, and list on pods "
    "and events"
)
ROLE = "ask the cluster's administrator for the role in docs/clusters.md, for namespace {namespace}"


class KubernetesError(LaunchError):
    """The API has refused a request.

    Attributes:
        status: of HTTP; 0 if the API was not reached.
    """

    def __init__(self, message: str, status: int = 0) -> None:
        """Hold the message for people."""
        super().__init__(message)
        self.status = status


def is_installed() -> bool:
    """Return whether the official client is."""
    return importlib.util.find_spec("kubernetes") is not None


def require_installed() -> None:
    """Raise an error unless the official client is installed.

    Raises:
        LaunchError: it is not.
    """
    if not is_installed():
        raise LaunchError(format_message(MISSING, instead="pip install 'nbmgpu[kubernetes]'"))


class Cluster:
    """The API of a cluster, for one namespace.

    Attributes:
        namespace: of all objects.
    """

    def __init__(self, context: str = "", namespace: str = "") -> None:
        """Read how to connect, as kubectl does: a kubeconfig file, else the pod's service account.

        Args:
            context: of the kubeconfig file; empty for the current one.
            namespace: empty for that of the context, or of this pod.

        Raises:
            LaunchError: neither is there, or the client is not installed.
        """
        require_installed()
        from kubernetes import client

        connection, default = _connection(context)
        self.namespace = namespace or default
        self._jobs = client.CustomObjectsApi(connection)
        self._core = client.CoreV1Api(connection)

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create a TrainJob; return it as the API has stored it.

        Raises:
            KubernetesError: the API refuses it.
        """
        write = self._jobs.create_namespaced_custom_object
        arguments = (GROUP, VERSION, self.namespace, PLURAL, manifest)
        created: dict[str, Any] = self._asked(write, *arguments)
        return created

    def train_job(self, name: str) -> dict[str, Any] | None:
        """Return a TrainJob; None if there is none of that name."""
        read = self._jobs.get_namespaced_custom_object
        return self._found(read, GROUP, VERSION, self.namespace, PLURAL, name)

    def train_jobs(self, selector: str) -> list[dict[str, Any]]:
        """Return the TrainJobs with these labels."""
        read = self._jobs.list_namespaced_custom_object
        arguments = (GROUP, VERSION, self.namespace, PLURAL)
        found: dict[str, Any] = self._asked(read, *arguments, label_selector=selector)
        return list(found["items"])

    def delete(self, name: str) -> None:
        """Delete a TrainJob, and with it its pods; one that is gone is not an error."""
        remove = self._jobs.delete_namespaced_custom_object
        self._found(remove, GROUP, VERSION, self.namespace, PLURAL, name)

    def pods(self, job: str) -> list[Any]:
        """Return the pods of a TrainJob, by their numbers."""
        selector = f"{JOB_LABEL}={job}"
        read = self._core.list_namespaced_pod
        return sorted(
            self._asked(read, self.namespace, label_selector=selector).items,
            key=lambda pod: (pod.metadata.name, pod.metadata.creation_timestamp),
        )

    def pod(self, name: str) -> Any:
        """Return a pod by its name.

        Raises:
            KubernetesError: there is none, or it may not be read.
        """
        return self._asked(self._core.read_namespaced_pod, name, self.namespace)

    def claim(self, name: str) -> Any | None:
        """Return a PersistentVolumeClaim; None if there is none of that name.

        Raises:
            KubernetesError: it may not be read.
        """
        read = self._core.read_namespaced_persistent_volume_claim
        return self._found(read, name, self.namespace)

    def events(self, job: str) -> list[Any]:
        """Return the events of a TrainJob and of what was made for it, the oldest first.

        Their names have that of the TrainJob, also those of workloads of Kueue.
        """
        found = self._asked(self._core.list_namespaced_event, self.namespace).items
        own = [each for each in found if job in (each.involved_object.name or "")]
        return sorted(own, key=lambda event: str(event.last_timestamp or event.event_time))

    def _found(self, call: Callable[..., Any], *arguments: str) -> Any | None:
        """Return what a call returns; None where it says that the object is not there."""
        try:
            return self._asked(call, *arguments)
        except KubernetesError as error:
            if error.status != 404:
                raise
            return None

    def _asked(self, call: Callable[..., Any], *arguments: object, **named: object) -> Any:
        """Return what a call returns.

        Raises:
            KubernetesError: with what the API says.
        """
        with _errors_for_people(self.namespace):
            return call(*arguments, **named, _request_timeout=TIMEOUT)


def _connection(context: str) -> tuple[ApiClient, str]:
    """Return a client, and the namespace where none is given."""
    from kubernetes import client, config
    from urllib3.util import Retry

    token = IN_POD / "token"
    configuration = client.Configuration()
    files = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    has_file = any(Path(each).exists() for each in files.split(os.pathsep) if each)
    try:
        if has_file or context or not token.exists():
            config.load_kube_config(files, context or None, configuration, False)
            contexts, current = config.list_kube_config_contexts(files)
            chosen = next((each for each in contexts if each["name"] == context), current)
            namespace = chosen["context"].get("namespace", "")
        else:
            config.load_incluster_config(configuration)
            namespace = (IN_POD / "namespace").read_text().strip()
    except config.ConfigException as error:
        what = NO_CLUSTER.format(error=error)
        raise LaunchError(format_message(what, WAYS, "kubectl config get-contexts")) from None
    configuration.retries = Retry(1, backoff_factor=0.2)
    return client.ApiClient(configuration), namespace or "default"


@contextmanager
def _errors_for_people(namespace: str) -> Iterator[None]:
    """Turn errors of the client into those of nbmgpu."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        status, said = int(error.status or 0), _message(error)
        if status == 403 and "exceeded quota" not in said:
            text = format_message(said, RIGHTS, ROLE.format(namespace=namespace))
        elif status == 404 and "could not find the requested resource" in said:
            text = format_message(NO_TRAINER, TRAINER, "kubectl get crd trainjobs." + GROUP)
        elif status == 401:
            what = f"The cluster does not accept your credentials: {said}"
            text = format_message(what, WAYS, "kubectl auth whoami")
        else:
            text = f"Kubernetes: {said}"
        raise KubernetesError(text, status) from None
    except HTTPError as error:
        what = f"Kubernetes does not answer: {getattr(error, 'reason', None) or error}"
        raise KubernetesError(format_message(what, instead="kubectl cluster-info")) from None


def _message(error: Any) -> str:
    """Return what the API says: the message of its Status object, else the body."""
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(error.body or error.reason or error.status).strip()
