"""The TrainJob of a run: its place in the run folder, its state in the cluster."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nbmgpu.engines.base import RunHandle
from nbmgpu.engines.multi_node.launch_file import LaunchFile
from nbmgpu.engines.multi_node.polled import Polled
from nbmgpu.errors import LaunchError, format_message
from nbmgpu.runs.folder import runs_root, write_atomically
from nbmgpu.runs.run import Run

from .api import TRAINER, Cluster, KubernetesError
from .job_options import JobOptions
from .job_state import JobState, event_text, job_state
from .node_files import HEAD_FILE, failed_nodes, node_logs, write_variables
from .train_job import LABELS, JobRequest, job_name

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB_FILE = "kubernetes-job"
"""Has context and namespace of the TrainJob, as JSON."""

OF_MACHINE = ("CUDA_", "HOSTNAME", "JPY_", "JUPYTERHUB_", "KUBERNETES_", "NVIDIA_", "TMPDIR")
"""Beginnings of environment variables that the pods have of their own, or must not get."""

TOO_OLD = "The cluster's Kubeflow Trainer does not know runtimePatches, so pods get no volume"
NEVER_STARTED = "TrainJob {name} has ended before its ranks had started. {why}"


def submit_job(run: Run, options: JobOptions) -> Job:
    """Create the TrainJob of a run.

    Raises:
        LaunchError: the cluster refuses it.
    """
    LaunchFile.create(run.folder, options.interface)
    write_variables(run.folder, variables_for_pods(os.environ))
    request = JobRequest.of(run.record, run.folder, options)
    cluster = Cluster(options.context, options.namespace)
    remove_ended(cluster)
    created = cluster.create(request.manifest())
    place = {"context": options.context, "namespace": cluster.namespace}
    write_atomically(run.folder / JOB_FILE, json.dumps(place))
    if not created["spec"].get("runtimePatches"):
        cluster.delete(request.name)
        raise LaunchError(format_message(TOO_OLD, TRAINER))
    return Job(run)


def variables_for_pods(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the notebook that pods get unless they have them."""
    return {name: value for name, value in environment.items() if not name.startswith(OF_MACHINE)}


def remove_ended(cluster: Cluster) -> None:
    """Delete the TrainJobs of own runs that are over, and that no kernel has followed to its end.

    It may not be allowed to list them; that they stay there is no reason for a run to fail.
    """
    selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
    with suppress(LaunchError):
        for job in cluster.train_jobs(selector):
            name = job["metadata"]["name"]
            folder = runs_root() / name.removeprefix(job_name(""))
            with suppress(OSError, ValueError, TypeError):
                run = Run(folder, ranks=0)
                run.refresh()
                if run.view.ended is not None:
                    cluster.delete(name)


class Job(RunHandle):
    """The TrainJob of a run, as any process that reads the run folder knows it."""

    def __init__(self, run: Run) -> None:
        """Refer to the TrainJob of ``run``; it may not be created yet."""
        self._folder, self._nodes = run.folder, run.record.nodes
        self._polled = Polled(JobState())
        self._cluster: Cluster | None = None
        self._deleted = False
        self.name = job_name(run.id)

    def _connected(self) -> Cluster | None:
        """Return the cluster; None if the TrainJob is not created yet.

        Raises:
            LaunchError: this machine does not know the cluster.
        """
        if self._cluster is None:
            try:
                place = json.loads((self._folder / JOB_FILE).read_text())
            except (FileNotFoundError, NotADirectoryError):
                return None
            self._cluster = Cluster(**place)
        return self._cluster

    def state(self, now: bool = False) -> JobState:
        """Return the state of the job, which may be some seconds old.

        Args:
            now: whether to ask for it in any case.
        """
        return self._polled.state(self._ask, now)

    def _ask(self) -> JobState:
        cluster = self._connected()
        if cluster is None:
            return JobState()
        job, pods = cluster.train_job(self.name), cluster.pods(self.name)
        head = ""
        with suppress(FileNotFoundError):
            head = (self._folder / HEAD_FILE).read_text()
        return job_state(job, pods, self._nodes, head)

    def error(self) -> str:
        """Return why the ranks will never start; empty as long as they may."""
        state = self.state()
        said = node_logs(self._folder)
        if failed := failed_nodes(self._folder):
            started = self._nodes - len(failed)
            why = f"{started} of {self._nodes} nodes could start ranks. The others say: {said}"
        elif state.error or not state.alive:
            why = "\n".join(filter(None, [state.lost, state.error, said and f"It says: {said}"]))
        else:
            return ""
        return NEVER_STARTED.format(name=self.name, why=why)

    def status(self) -> str:
        """Return what the run waits for, in words; empty if it does not wait."""
        state = self.state()
        if not state.waits_for:
            return ""
        more = ""
        if cluster := self._connected():
            with suppress(KubernetesError):  # reading events may not be allowed
                more = event_text(cluster.events(self.name))
        text = f"TrainJob {self.name}: {state.waits_for}"
        return text if not more or more in text else f"{text}. {more}"

    def delete(self) -> None:
        """Delete it, and with it its pods.

        Raises:
            LaunchError: the cluster does not answer, or refuses that.
        """
        if not self._deleted and (cluster := self._connected()):
            cluster.delete(self.name)
            self._deleted = True
