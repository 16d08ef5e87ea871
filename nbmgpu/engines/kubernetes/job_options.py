"""``--engine-option`` for Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nbmgpu.engines.multi_node.option_values import cpus_per_rank, require_known_keys
from nbmgpu.errors import OptionError, format_message

KEYS = (
    "claim", "context", "cpus-per-rank", "env", "gpu-resource", "image", "image-pull-secrets",
    "interface", "memory", "mount", "namespace", "node-selector", "priority", "python", "queue",
    "runtime", "service-account", "sub-path", "tolerations",
)  # fmt: skip

QUANTITY = re.compile(r"\d+(\.\d+)?([KMGTP]i?|k)?")
"""A number of bytes, as Kubernetes writes them."""

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
"""Names of objects (RFC 1123)."""

KUEUE = {
    "queue": "kueue.x-k8s.io/queue-name",
    "priority": "kueue.x-k8s.io/priority-class",
}
"""Labels by key."""

OF_PODS = ("env", "image-pull-secrets", "node-selector", "service-account", "tolerations")

NAMES = ("claim", "namespace", "queue", "runtime", "service-account", "priority")

EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
EXAMPLE = "tolerations=nvidia.com/gpu=present:NoSchedule;spot"


@dataclass(frozen=True)
class Toleration:
    """A taint of nodes that pods may run on nevertheless; without ``value``, any value of it."""

    key: str
    value: str = ""
    effect: str = ""

    @classmethod
    def parse(cls, text: str) -> Toleration:
        """Return the toleration that ``key=value:effect`` describes, as kubectl writes taints.

        Raises:
            OptionError: it has no key, or there is no such effect.
        """
        taint, _, effect = text.partition(":")
        key, _, value = taint.partition("=")
        if not key or (effect and effect not in EFFECTS):
            what = f"tolerations={text} is not key=value:effect"
            allowed = f"Effects: {', '.join(EFFECTS)}; several taints are separated by ;"
            raise OptionError(format_message(what, allowed, f"--engine-option '{EXAMPLE}'"))
        return cls(key, value, effect)

    def manifest(self) -> dict[str, str]:
        """Return it as in a pod's specification."""
        operator = {"operator": "Equal", "value": self.value} if self.value else {}
        effect = {"effect": self.effect} if self.effect else {}
        return {"key": self.key, "operator": "Exists", **operator, **effect}


@dataclass(frozen=True)
class PodOptions:
    """What pods are like, each as in a pod's specification.

    Attributes:
        service_account, image_pull_secrets, node_selector, tolerations: of the pods.
        env: environment variables of their container.
    """

    service_account: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """Return what is set, besides variables, as in a pod's specification."""
        parts = {
            "serviceAccountName": self.service_account,
            "imagePullSecrets": [{"name": name} for name in self.image_pull_secrets],
            "nodeSelector": dict(self.node_selector),
            "tolerations": [each.manifest() for each in self.tolerations],
        }
        return {key: value for key, value in parts.items() if value}


@dataclass(frozen=True)
class JobOptions:
    """Where a TrainJob is created, and what its pods are like; empty for the default of each.

    Attributes:
        claim: name of the PersistentVolumeClaim that notebook and pods share.
        mount: path at which both mount it.
        sub_path: folder of the volume that is mounted; empty for all of it.
        image: of the pods' container.
        namespace: of all objects.
        context: of the kubeconfig file.
        python: the interpreter in the image.
        runtime: name of the ClusterTrainingRuntime.
        cpus_per_rank: cores of each rank; None for 1.
        memory: of each pod, such as ``64Gi``.
        gpu_resource: what GPUs are called in requests.
        labels: of the TrainJob: its queue and priority in Kueue.
        pods: what the pods are like.
        interface: network interface for gloo and NCCL; empty for the one that leads to the head.
    """

    claim: str = ""
    mount: str = ""
    sub_path: str = ""
    image: str = ""
    namespace: str = ""
    context: str = ""
    python: str = ""
    runtime: str = "torch-distributed"
    cpus_per_rank: int | None = None
    memory: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    labels: Mapping[str, str] = field(default_factory=dict)
    interface: str = ""
    pods: PodOptions = PodOptions()

    @classmethod
    def of(cls, values: Mapping[str, str]) -> JobOptions:
        """Return the options of ``--engine-option``.

        Raises:
            OptionError: a key is unknown, or a value cannot be.
        """
        require_known_keys("Kubernetes", values, KEYS, "claim")
        for key in NAMES:
            if key in values and not NAME.fullmatch(values[key]):
                what = f"{key}={values[key]} is no name of Kubernetes"
                allowed = "Names have lower-case letters, digits, dots and hyphens"
                instead = f"--engine-option {key}={values[key].lower().replace('_', '-')}"
                raise OptionError(format_message(what, allowed, instead))
        if not QUANTITY.fullmatch(values.get("memory", "1")):
            what = f"memory={values['memory']} is not an amount of memory"
            raise OptionError(format_message(what, instead="--engine-option memory=64Gi"))
        if not values.get("mount", "/").startswith("/"):
            what = f"mount={values['mount']} is not an absolute path"
            raise OptionError(format_message(what, instead="--engine-option mount=/home/jovyan"))
        words = {
            key.replace("-", "_"): value
            for key, value in values.items()
            if key not in ("cpus-per-rank", *KUEUE, *OF_PODS)
        }
        return cls(
            **words,
            cpus_per_rank=cpus_per_rank(values),
            labels={label: values[key] for key, label in KUEUE.items() if key in values},
            pods=PodOptions(
                values.get("service-account", ""),
                tuple(_items(values, "image-pull-secrets")),
                _pairs(values, "node-selector"),
                tuple(map(Toleration.parse, _items(values, "tolerations"))),
                _pairs(values, "env"),
            ),
        )


def _items(values: Mapping[str, str], key: str) -> list[str]:
    return [each.strip() for each in values.get(key, "").split(";") if each.strip()]


def _pairs(values: Mapping[str, str], key: str) -> dict[str, str]:
    """Return the pairs ``name=value;name=value`` of an option.

    Raises:
        OptionError: one has no name, or no value.
    """
    pairs = {}
    for item in _items(values, key):
        name, sign, value = item.partition("=")
        if not (name and sign):
            what = f"{key}={item} is not name=value"
            instead = f"--engine-option '{key}=name=value;other=value'"
            raise OptionError(format_message(what, "Several are separated by ;", instead))
        pairs[name] = value
    return pairs
