"""A real Ray cluster on this machine: a head without cores, and nodes with names of their own."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

START_TIMEOUT = 70.0
"""Seconds for a node.  On a busy machine Ray gives it up after 30, and it is started again."""

CORES = 2
AUTHENTICATION = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
"""Nodes and drivers must know this."""

ENVIRONMENT = AUTHENTICATION | {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_worker_prestart": "0",  # two cores have enough to do
    "RAY_prestart_worker_first_driver": "0",
}


def why_not() -> str:
    """Return why no cluster can run here; empty if one can."""
    if importlib.util.find_spec("ray") is None:
        return "ray is not installed"
    probe = subprocess.run(
        ["unshare", "--uts", "--mount", "true"], capture_output=True, check=False
    )
    return "" if probe.returncode == 0 else "unshare --uts --mount is not permitted"


@contextmanager
def started_ray(nodes: dict[str, Path | None]) -> Iterator[RayCluster]:
    """Start Ray; runs use it meanwhile.

    Args:
        nodes: their names; for each the folder that it does not see.
    """
    if reason := why_not():
        pytest.skip(reason)
    with ExitStack() as stack:
        try:
            cluster = stack.enter_context(RayCluster())
            for name, hidden in nodes.items():
                cluster.add(name, hidden)
        except TimeoutError as error:
            pytest.skip(f"Ray does not start here: {error}")
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in ({"RAY_ADDRESS": cluster.address} | AUTHENTICATION).items():
            patch.setenv(name, value)
        yield cluster


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RayCluster:
    """A head and its nodes; ``stop`` ends all their processes.

    Attributes:
        address: of the cluster.
        client_address: for machines that are no nodes of it.
    """

    def __init__(self) -> None:
        """Start the head."""
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short: it has sockets
        self.address = f"127.0.0.1:{free_port()}"
        self.client_address = f"ray://127.0.0.1:{free_port()}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._start(
                "head", "", "--head", f"--port={self.address.partition(':')[2]}",
                f"--ray-client-server-port={self.client_address.rpartition(':')[2]}",
                "--include-dashboard=false", f"--temp-dir={self._folder}/t", "--num-cpus=0",
            )  # fmt: skip
        except BaseException:  # also the timeout of a test
            self.stop()
            raise

    def add(self, name: str, hidden: Path | None = None) -> None:
        """Start a node with two cores.

        Args:
            name: its host name.
            hidden: a folder that it does not see: an empty one is in its place.
        """
        hide = f"mount -t tmpfs tmpfs {hidden} && " if hidden else ""
        self._start(name, hide, f"--address={self.address}", f"--num-cpus={CORES}")

    def _start(self, name: str, prepare: str, *arguments: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while not self._has_started(deadline, name, prepare, *arguments):
            self.remove(name)

    def _has_started(self, deadline: float, name: str, prepare: str, *arguments: str) -> bool:
        """Start a node; return whether it has started, or ended instead.

        Raises:
            TimeoutError: it has done neither at ``deadline``.
        """
        log = self._folder / f"{name}.log"
        ray = Path(sys.executable).with_name("ray")
        command = (
            f"hostname {name} && {prepare}cd / && exec {ray} start --block --disable-usage-stats "
            f"--node-ip-address=127.0.0.1 --object-store-memory=200000000 {' '.join(arguments)}"
        )
        with log.open("wb") as file:
            self.nodes[name] = process = subprocess.Popen(
                ["unshare", "--uts", "--mount", "sh", "-c", command],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
                env=os.environ | ENVIRONMENT,
            )  # fmt: skip
        while "Ray runtime started" not in log.read_text(errors="replace"):
            if time.monotonic() > deadline:
                self.remove(name)
                raise TimeoutError(log.read_text(errors="replace")[-500:])
            if process.poll() is not None:
                return False
            time.sleep(0.1)
        return True

    def __enter__(self) -> RayCluster:
        """Return the cluster."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.stop()

    def raylet(self, name: str) -> psutil.Process:
        """Return the process that is the node."""
        children = psutil.Process(self.nodes[name].pid).children(recursive=True)
        (found,) = [each for each in children if each.name() == "raylet"]
        return found

    def remove(self, name: str) -> None:
        """End all processes of a node."""
        process = self.nodes.pop(name)
        own = []
        with suppress(psutil.NoSuchProcess):  # it ends with its raylet
            own = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, left = psutil.wait_procs(own, timeout=10)
        for each in left:
            each.kill()
        process.kill()
        process.wait()

    def stop(self) -> None:
        """End all processes of the cluster, the head last."""
        for name in [*self.nodes][::-1]:
            self.remove(name)
        shutil.rmtree(self._folder, ignore_errors=True)
