"""What a notebook that runs in a pod, as JupyterHub starts it, tells about the pods of its runs."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from pathlib import Path
from typing import Any

from nbmgpu.errors import LaunchError, OptionError, format_message
from nbmgpu.runs.folder import runs_root

from .api import IN_POD, Cluster, KubernetesError
from .job_options import JobOptions
from .train_job import is_below

NOT_KNOWN = "--engine kubernetes does not know which {what} pods are to have"
WHY_NOT = "In a pod, that of the notebook is taken, if its service account may get pods{error}"
EXAMPLES = {
    "image": "--engine-option image=quay.io/jupyter/pytorch-notebook:latest",
    "claim": "--engine-option claim=claim-{user},mount=/home/jovyan",
    "mount": "--engine-option mount=/home/jovyan",
}
NO_CLAIM = "Namespace {namespace} has no PersistentVolumeClaim {claim}"
NOT_BELOW = "{what} {path} is not on the volume that pods mount at {mount}"


def complete(options: JobOptions) -> tuple[JobOptions, str]:
    """Return the options with what this pod tells, checked; and what was taken from it, in words.

    Raises:
        OptionError: an option is missing, or folders are not on the volume.
        LaunchError: the cluster is not known, or has no such claim.
    """
    cluster = Cluster(options.context, options.namespace)
    told, error = {}, ""
    missing = [key for key in EXAMPLES if not getattr(options, key)]
    if missing and (IN_POD / "namespace").exists():
        try:
            told = _told(cluster.pod(socket.gethostname()), options.claim)
        except KubernetesError as refused:
            error = f"; it may not: {str(refused).partition(chr(10))[0]}"
    known: dict[str, Any] = {key: told[key] for key in missing if told.get(key)}
    if "mount" in known and not options.sub_path:
        known["sub_path"] = told["sub_path"]
    full = dataclasses.replace(options, namespace=cluster.namespace, **known)
    for key, example in EXAMPLES.items():
        if not getattr(full, key):
            what = NOT_KNOWN.format(what=key if key != "mount" else "mount of the claim")
            instead = example.format(user=os.environ.get("USER", "alice"))
            raise OptionError(format_message(what, WHY_NOT.format(error=error), instead))
    if not full.python:
        own = "image" in known or is_below(sys.executable, full.mount)
        full = dataclasses.replace(full, python=sys.executable if own else "python")
    _require_shared_folders(full)
    _require_claim(cluster, full.claim)
    shown = [f"{key.replace('_', '-')} {value}" for key, value in known.items() if value]
    return full, f"As in the notebook's own pod: {', '.join(shown)}." if shown else ""


def _told(pod: Any, claim: str) -> dict[str, str]:
    """Return what a pod tells: its image, and the claim that it mounts where runs are.

    Args:
        pod: that of the notebook.
        claim: the one that was chosen; empty for any.
    """
    containers = pod.spec.containers
    main = next((each for each in containers if each.name == "notebook"), containers[0])
    claims = {
        volume.name: volume.persistent_volume_claim.claim_name
        for volume in pod.spec.volumes or []
        if volume.persistent_volume_claim is not None
    }
    told = {"image": main.image}
    mounts = [each for each in main.volume_mounts or [] if each.name in claims]
    for mount in sorted(mounts, key=lambda each: len(each.mount_path)):
        found = claims[mount.name]
        if is_below(runs_root(), mount.mount_path) and claim in ("", found):
            told |= {"claim": found, "mount": mount.mount_path, "sub_path": mount.sub_path or ""}
    return told


def _require_shared_folders(options: JobOptions) -> None:
    """Raise an error unless pods see the run folder and the notebook's folder.

    Raises:
        OptionError: one of them is elsewhere.
    """
    folders = {
        "The folder of runs": (runs_root(), f"set NBMGPU_RUNS to {options.mount}/.nbmgpu"),
        "The notebook's folder": (Path.cwd(), f"a notebook below {options.mount}"),
    }
    for what, (path, instead) in folders.items():
        if not is_below(path, options.mount):
            text = NOT_BELOW.format(what=what, path=path, mount=options.mount)
            raise OptionError(format_message(text, "Pods see nothing else", instead))


def _require_claim(cluster: Cluster, claim: str) -> None:
    """Raise an error if there is no such claim; whether there is one may be unknown.

    Raises:
        LaunchError: there is none.
    """
    try:
        found = cluster.claim(claim)
    except KubernetesError as error:
        if error.status != 403:
            raise
        return
    if found is None:
        what = NO_CLAIM.format(namespace=cluster.namespace, claim=claim)
        instead = f"kubectl get pvc --namespace {cluster.namespace}"
        raise LaunchError(format_message(what, instead=instead))
