"""The engine of CONTRIBUTING.md, installed as another package would be, and real clusters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from entry_points import example_of_contributing, installed
from kubernetes_cluster import KubernetesCluster, played_kubernetes
from ray_cluster import RayCluster, started_ray
from runs_folder import runs_folder  # noqa: F401
from session_guard import guard_session
from slurm_cluster import INSTALL, SlurmCluster, missing_program

from nbmgpu.runs import engine_plugins


@pytest.fixture(scope="session")
def subprocess_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Install the engine; return its name."""
    engine = example_of_contributing("Add an engine")
    assert engine.group == engine_plugins.GROUP
    with installed(tmp_path_factory.mktemp("site-packages"), *engine):
        (name,) = engine.entry_points
        yield name


@pytest.fixture(scope="session", autouse=True)
def guard() -> None:
    """End clusters and runs also where a timeout ends this process."""
    guard_session()


@pytest.fixture(scope="module")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start Slurm with the nodes ``node1`` and ``node2``."""
    if missing_program():
        pytest.skip(f"no Slurm: {INSTALL}")
    folder = tmp_path_factory.mktemp("slurm")
    try:
        cluster = SlurmCluster(folder)
    except TimeoutError:  # such as in a container that munge or Slurm do not like
        pytest.skip(f"Slurm does not start here: {last_lines(folder)}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.config))
        yield cluster
    cluster.stop()


def last_lines(folder: Path) -> str:
    """Return the last line of each log in ``folder``."""
    texts = {log.name: log.read_text(errors="replace").strip() for log in folder.glob("*.log")}
    return "; ".join(f"{name}: {text.splitlines()[-1]}" for name, text in texts.items() if text)


@pytest.fixture(scope="module")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """Play Kubernetes; the profile ``kubernetes_played`` has what runs need there."""
    notebook = tmp_path_factory.mktemp("notebook")
    shared = tmp_path_factory.getbasetemp()
    with played_kubernetes(shared) as cluster, pytest.MonkeyPatch.context() as patch:
        patch.chdir(notebook)
        yield cluster


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayCluster]:
    """Start Ray with the nodes ``node1`` and ``node2``."""
    with started_ray({"node1": None, "node2": None}) as cluster:
        yield cluster
