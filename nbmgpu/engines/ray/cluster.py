"""A Ray cluster, and the process that connects to it for a run."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from nbmgpu.engines.base import RunHandle
from nbmgpu.errors import LaunchError, format_message
from nbmgpu.formatting import format_count
from nbmgpu.rank.command_line import start_variables
from nbmgpu.runs.folder import write_atomically
from nbmgpu.system.processes import creation_time, process_is_alive

from .refusal import NOT_CONNECTED, refusal

HEAD_FILE = "ray-head"
"""Has pid and start time of the head, which may still wait for room in the cluster."""

WAITING_FILE = "ray-waiting"
"""Says, in words, what the head waits for."""

OF_MACHINE = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HOSTNAME", "TMPDIR",
)  # fmt: skip
"""Environment variables that describe a machine: nodes keep their own, as Ray has set them."""

NOT_SHARED = (
    "Checkpoints need nodes that see the folder of runs, {folder}, and the notebook's folder, "
    "{cwd}. Of the Ray cluster, these do not: {names}"
)
SHARED = "Allowed with checkpoints: {nodes} that share both folders with this machine"
SHOWN = 8
"""Most names of nodes in a message."""

NEVER_STARTED = "The head of the run has ended before its ranks had started. It says: {log}"


@dataclass(frozen=True)
class Cluster:
    """What a cluster has.

    Attributes:
        gpus: of each node.
        dashboard: ``host:port``, empty without one.
        nodes: number of nodes with cores.
        blind: names of those that do not see the notebook's files, if this was asked.
    """

    gpus: tuple[int, ...]
    dashboard: str = ""
    nodes: int = 0
    blind: tuple[str, ...] = ()

    def require_seen(self, nodes: int, folder: str) -> None:
        """Check that a run on ``nodes`` nodes can have its files in ``folder``.

        Raises:
            LaunchError: too few nodes see it.
        """
        if self.blind and self.nodes - len(self.blind) < nodes:
            shown = ", ".join(self.blind[:SHOWN]) + ", ..." * (len(self.blind) > SHOWN)
            raise LaunchError(
                format_message(
                    NOT_SHARED.format(names=shown, folder=folder, cwd=os.getcwd()),
                    SHARED.format(nodes=format_count(nodes, "node")),
                    "os.environ['NBMGPU_RUNS'] = '/a/shared/folder', or the cell without "
                    "--checkpoint-every and --resume",
                )
            )

    def gpus_per_node(self, nodes: int) -> int:
        """Return how many GPUs each of ``nodes`` nodes has.

        If there are fewer with GPUs, the cluster has to grow: by nodes like its largest one.
        """
        gpus = sorted(self.gpus, reverse=True)
        return (gpus[nodes - 1] if nodes <= len(gpus) else 0) or max(gpus, default=0)


@dataclass(frozen=True)
class HeadRequest:
    """What the kernel tells the head of a run, as one line of JSON.

    Attributes:
        folder: the run folder.
        environment: variables for processes on nodes that see the notebook's files.
        restored: what ``restore_variables`` takes there.
    """

    folder: str
    environment: dict[str, str]
    restored: str

    @classmethod
    def of_this_process(cls, folder: Path) -> HeadRequest:
        """Return the request for a run of this kernel."""
        variables, restored = start_variables()
        kept = {n: value for n, value in os.environ.items() if n not in OF_MACHINE}
        return cls(str(folder), kept | variables, restored)


class HeadProcess:
    """The head of a run to come: a process of its own, which outlives this one with its run.

    Attributes:
        address: of the cluster that it connects to.
        folder: that it asks nodes for, empty for none.
    """

    def __init__(self, address: str, folder: str = "") -> None:
        """Start the process."""
        self.address, self.folder = address, folder
        self._cluster: Cluster | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "nbmgpu.engines.ray.head"),
                *(f"--address={address}", f"--folder={folder}"),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONSAFEPATH": "1"},
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._process.wait, daemon=True).start()

    def can_begin(self) -> bool:
        """Return whether it can still begin a run, and look what the cluster has by now."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return False
        try:
            if self._cluster is not None:
                self._process.stdin.write("\n")
                self._process.stdin.flush()
            self._cluster = self._read_cluster()
        except (OSError, LaunchError):  # it is lost, or the cluster is
            return False
        return True

    def cluster(self) -> Cluster:
        """Wait until it is connected, and return the cluster.

        Raises:
            LaunchError: it cannot connect.
        """
        self._cluster = self._cluster or self._read_cluster()
        return self._cluster

    def _read_cluster(self) -> Cluster:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                fields = json.loads(line)
                return Cluster(**fields | {n: tuple(fields[n]) for n in ("gpus", "blind")})
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip() or "no reason"
        self.close()
        raise LaunchError(refusal(said, self.address))

    def begin(self, folder: Path) -> Head:
        """Let it run the run in ``folder``.

        Raises:
            LaunchError: it cannot connect, or has ended.
        """
        assert self._process.stdin is not None
        self.cluster()
        pid = self._process.pid
        request = json.dumps(dataclasses.asdict(HeadRequest.of_this_process(folder)))
        try:
            fields = {"pid": pid, "create_time": creation_time(pid)}
            write_atomically(folder / HEAD_FILE, json.dumps(fields))
            self._process.stdin.write(f"{request}\n")
            self._process.stdin.flush()
        except (BrokenPipeError, psutil.NoSuchProcess):
            what = NOT_CONNECTED.format(address="", error="its process has ended")
            raise LaunchError(format_message(what, instead="the cell once more")) from None
        self.close()
        return Head(folder)

    def end(self) -> None:
        """End it: it has begun no run, and may still try to connect."""
        self.close()
        self._process.terminate()

    def close(self) -> None:
        """Close what connects this process with it."""
        for each in (self._process.stdin, self._process.stdout, self._errors):
            if each is not None:
                each.close()


class Head(RunHandle):
    """The head of a run, as any process of this machine knows it."""

    def __init__(self, folder: Path) -> None:
        """Refer to the head of the run in ``folder``."""
        self._folder = folder

    def _process(self) -> tuple[int, float] | None:
        """Return its pid and start time; None if it has not been started yet."""
        try:
            fields = json.loads((self._folder / HEAD_FILE).read_text())
        except FileNotFoundError:
            return None
        return fields["pid"], fields["create_time"]

    @property
    def alive(self) -> bool:
        """Whether it runs, or has not been started yet."""
        process = self._process()
        return process is None or process_is_alive(*process)

    def error(self) -> str:
        """Return why the ranks will never start; empty as long as they may."""
        if self.alive:
            return ""
        text = ""
        with suppress(FileNotFoundError):
            log = self._folder / "logs" / "launcher.log"
            text = log.read_text(errors="replace").strip()
        return NEVER_STARTED.format(log=text[-2000:] or "nothing")

    def status(self) -> str:
        """Return what the head waits for; empty if it does not wait for room in the cluster."""
        with suppress(FileNotFoundError):
            return (self._folder / WAITING_FILE).read_text()
        return ""

    def signal(self, sig: signal.Signals) -> None:
        """Signal it, if it runs."""
        process = self._process()
        if process is not None and process_is_alive(*process):
            os.kill(process[0], sig)
