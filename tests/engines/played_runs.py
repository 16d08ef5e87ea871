"""What tests of runs in a played Kubernetes share; the fixture is set up where it is imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes_cluster import KubernetesCluster
from several_nodes import ON_TWO_NODES, children, wait

PLAYED: dict[str, Any] = ON_TWO_NODES | {"engine": "kubernetes_played"}

matrix = pytest.mark.matrix("nbmgpu/engines")


@pytest.fixture(autouse=True)
def nothing_left(kubernetes_cluster: KubernetesCluster) -> Iterator[None]:
    """After each test, neither objects nor processes of runs are left."""
    before = set(children())
    kubernetes_cluster.reset()
    yield
    cluster = kubernetes_cluster
    try:
        wait(lambda: not (cluster.jobs or cluster.pods or set(children()) - before), 30)
    finally:
        for name in [*cluster.jobs]:  # of a test that has failed: the next one begins with nothing
            cluster.delete(name)
