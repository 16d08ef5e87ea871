"""A Slurm cluster on this machine: munge, a controller and two nodes, in a folder of its own."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")
INSTALL = "apt-get install slurm-wlm munge"
NODES = ("node1", "node2")

CONFIG = """
ClusterName=nbmgpu
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctl}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={sockets}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=10000
MpiDefault=none
ReturnToService=2
BatchStartTimeout=120
KillWait=5
MinJobAge=10
MailProg=/bin/true
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
PartitionName=main Nodes=node1,node2 Default=YES MaxTime=INFINITE State=UP GraceTime=120
PartitionName=urgent Nodes=node1,node2 MaxTime=INFINITE State=UP PriorityTier=2
"""
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 Gres=gpu:2 "
    "State=UNKNOWN\n"
)


def missing_program() -> str:
    """Return which program of Slurm is not installed; empty if all are."""
    return next((name for name in PROGRAMS if _path(name) is None), "")


def _path(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class SlurmCluster:
    """Daemons that this process has started, and ends.

    Attributes:
        folder: of their files.
        config: path of ``slurm.conf``, for the environment variable ``SLURM_CONF``.
    """

    def __init__(self, folder: Path) -> None:
        """Start the cluster; it is ready when this returns.

        Raises:
            TimeoutError: it is not ready after a while; the logs are in ``folder``.
        """
        self.folder = folder
        self.config = folder / "slurm.conf"
        self._sockets = Path(tempfile.mkdtemp(prefix="slurm-"))  # their paths must be short
        self._processes: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        host = socket.gethostname().partition(".")[0]
        for each in (folder / "state", *(self._sockets / name for name in NODES)):
            each.mkdir()
        text = CONFIG.format(
            host=host, ctl=_free_port(), user=getpass.getuser(), folder=folder,
            sockets=self._sockets,
        )  # fmt: skip
        nodes = [NODE.format(name=name, host=host, port=_free_port()) for name in NODES]
        self.config.write_text(text.replace("PartitionName", "".join(nodes) + "PartitionName", 1))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for index in (0, 1):  # GPUs that Slurm counts, and no program sees
            (folder / f"gpu{index}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        try:
            self._start(
                "munged", "--foreground", "--force", f"--socket={self._sockets}/munge.socket",
                f"--key-file={key}", f"--pid-file={folder}/munged.pid",
                f"--log-file={folder}/munged.log", f"--seed-file={folder}/munged.seed",
            )  # fmt: skip
            _wait((self._sockets / "munge.socket").exists)
            self._start("slurmctld", "-D", "-f", str(self.config))
            for name in NODES:
                self.start_node(name)
            _wait(
                lambda: (
                    self.run("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").strip() == "2"
                )
            )
        except BaseException:  # also the timeout of a test
            self.stop()
            raise

    def start_node(self, name: str) -> None:
        """Start a node, which may have been lost."""
        self._nodes[name] = self._start("slurmd", "-D", "-N", name, "-f", str(self.config))

    def processes_of(self, name: str) -> list[psutil.Process]:
        """Return the daemon of a node, and what it has started."""
        tasks = [each for each in psutil.process_iter() if _node_of(each, self.config) == name]
        steps = {each.parent() for each in tasks} - {*tasks, None}
        assert all(each.name().startswith("slurmstepd") for each in steps), steps
        return [psutil.Process(self._nodes[name].pid), *steps, *tasks]

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = _path(name)
        assert path is not None
        with (self.folder / f"{name}-output.log").open("ab") as log:
            process = subprocess.Popen(
                [path, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self.variables,
            )  # fmt: skip
        self._processes.append(process)
        return process

    @property
    def variables(self) -> dict[str, str]:
        """The environment of processes that use the cluster."""
        return os.environ | {"SLURM_CONF": str(self.config)}

    def run(self, *command: str) -> str:
        """Return what a command of Slurm prints."""
        done = subprocess.run(
            command, env=self.variables, capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout

    def jobs(self) -> list[str]:
        """Return the numbers of all jobs that are not over."""
        return self.run("squeue", "-h", "-o", "%i").split()

    def stop(self) -> None:
        """Cancel all jobs, and end the daemons."""
        self.run("scancel", "-u", getpass.getuser())
        with suppress(TimeoutError):
            _wait(lambda: not self.jobs())
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)


def _node_of(process: psutil.Process, config: Path) -> str:
    """Return the node of this cluster that has started ``process``; empty if none has."""
    with suppress(psutil.Error):
        variables = process.environ()
        if variables.get("SLURM_CONF") == str(config):
            return variables.get("SLURMD_NODENAME", "")
    return ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait(done: object, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError("the cluster does not start")
        time.sleep(0.05)
