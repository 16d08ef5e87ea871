"""The state of a TrainJob and its pods, in words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .train_job import NODE

PULL_FAILURES = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName")
"""Why a container waits that will not start: its image; Kubernetes has tried several times."""

FAILURES = (*PULL_FAILURES, "CreateContainerConfigError")

TELLING = ("Pending", "Pulling")
"""Reasons of events, besides those of warnings, that say what a pod waits for: Kueue, or an image.
"""

NO_CLAIM = re.compile(r'persistentvolumeclaim "([^"]+)" not found')

DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by a pod of higher priority",
    "EvictionByEvictionAPI": "was evicted, such as by kubectl drain",
    "DeletionByTaintManager": "was evicted, as its node got a taint that it does not tolerate",
    "DeletionByPodGC": "is lost: its node is gone",
    "TerminationByKubelet": "was evicted, or its node was shut down",
}
"""What the reasons of the condition DisruptionTarget mean."""


@dataclass(frozen=True)
class JobState:
    """What the cluster knows of a run.

    Attributes:
        alive: whether a pod may still run ranks.
        waits_for: why some pod does not run yet; empty if all do.
        error: why the ranks will never start; empty if they may.
        lost: which pod was ended from outside, and why; empty if none was.
        head_lost: whether it was the head of the run.
    """

    alive: bool = True
    waits_for: str = ""
    error: str = ""
    lost: str = ""
    head_lost: bool = False


def job_state(
    job: dict[str, Any] | None, pods: Sequence[Any], nodes: int, head: str = ""
) -> JobState:
    """Return the state of a TrainJob.

    Args:
        job: the TrainJob; None if it is gone.
        pods: all of its pods.
        nodes: how many it should have.
        head: name of the pod that is the head of the run; empty if none is yet.  A pod with its
            number may have been lost before, as in a queue, or replace it now.
    """
    conditions = {
        each["type"]: each for each in (job or {}).get("status", {}).get("conditions", [])
    }
    holding = [type_ for type_, each in conditions.items() if each["status"] == "True"]
    over = job is None or "Complete" in holding or "Failed" in holding
    active = [pod for pod in pods if pod.status.phase in ("Pending", "Running", "Unknown")]
    lost = {pod.metadata.name: text for pod in pods if (text := pod_loss(pod))}
    error = next(filter(None, map(pod_error, pods)), "")
    if job is None:
        error = "The TrainJob was deleted"
    elif "Failed" in holding:
        failed = conditions["Failed"]
        error = f"The TrainJob has failed ({failed['reason']}): {failed.get('message', '')}"
    waits_for = next(filter(None, map(pod_wait, active)), "")
    if "Suspended" in holding:
        waits_for = "is suspended, as in a queue of Kueue"
    elif not waits_for and len(pods) < nodes:
        waits_for = f"has {len(pods)} of {nodes} pods"
    return JobState(
        alive=bool(active) or not over,
        waits_for=waits_for,
        error=error.rstrip(": "),
        lost="\n".join(lost.values()),
        head_lost=head in lost,
    )


def place(pod: Any) -> str:
    """Return a pod's name, and that of its node."""
    node = f" on node {pod.spec.node_name}" if pod.spec.node_name else ""
    return f"pod {pod.metadata.name}{node}"


def pod_wait(pod: Any) -> str:
    """Return why a pod does not run yet; empty if it does."""
    if pod.status.phase != "Pending":
        return ""
    for condition in pod.status.conditions or []:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f"{place(pod)} is pending ({condition.reason}): {condition.message or ''}"
    for state in filter(None, (each.state.waiting for each in _containers(pod))):
        return f"{place(pod)} is starting ({state.reason})"
    return f"{place(pod)} is pending"


def pod_error(pod: Any) -> str:
    """Return why a pod will never run; empty if it may."""
    for condition in pod.status.conditions or []:
        if found := NO_CLAIM.search(condition.message or ""):
            return f"The namespace has no claim {found[1]}, says {place(pod)}"
    for container in _containers(pod):
        for state in filter(None, (container.state, container.last_state)):
            if state.terminated and state.terminated.message:  # of train_job.SCRIPT
                return str(state.terminated.message).strip()
        waiting = container.state.waiting
        if waiting is None or waiting.reason not in FAILURES:
            continue
        said = f": {waiting.message}" if waiting.message else ""
        if waiting.reason in PULL_FAILURES:
            return f"The image {container.image} cannot be had ({waiting.reason}){said}"
        return f"The container of {place(pod)} cannot be made ({waiting.reason}){said}"
    return ""


def pod_loss(pod: Any) -> str:
    """Return why a pod, or its container, was ended by others; empty if it was not."""
    status = pod.status
    said = f": {status.message}" if status.message else ""
    if status.reason == "Evicted":
        return f"{place(pod)} was evicted{said}"
    for condition in status.conditions or []:
        if condition.type == "DisruptionTarget" and condition.status == "True":
            what = DISRUPTIONS.get(condition.reason, f"was ended ({condition.reason})")
            return f"{place(pod)} {what}: {condition.message or ''}".rstrip(": ")
    for container in _containers(pod):
        for state in (container.state, container.last_state):
            ended = state and state.terminated
            if ended and ended.reason == "OOMKilled":
                limit = _memory_limit(pod)
                return f"{place(pod)} ran out of memory (OOMKilled){limit}"
            if ended and ended.exit_code:
                return f"{place(pod)} has ended with code {ended.exit_code} ({ended.reason})"
    return f"{place(pod)} has failed ({status.reason}){said}" if status.reason else ""


def _containers(pod: Any) -> list[Any]:
    """Return the states of the container in which ranks run, if there are any yet."""
    return [each for each in pod.status.container_statuses or [] if each.name == NODE]


def _memory_limit(pod: Any) -> str:
    resources = next((each.resources for each in pod.spec.containers if each.name == NODE), None)
    limit = ((resources and resources.limits) or {}).get("memory")
    return f"; its limit is {limit}" if limit else ""


def event_text(events: Sequence[Any]) -> str:
    """Return the last event that says more than states do."""
    texts = [
        f"{event.reason}: {event.message}"
        for event in events
        if event.type == "Warning" or event.reason in TELLING
    ]
    return texts[-1] if texts else ""
