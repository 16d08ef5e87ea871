"""The ranks of a run as the launcher's children.  They are signalled by pid, never by name."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from abc import abstractmethod
from contextlib import suppress

from nbmgpu.engines.rank_processes import RankProcesses
from nbmgpu.rank.command_line import rank_command
from nbmgpu.rank.rank_environment import RankEnvironment
from nbmgpu.runs import reference
from nbmgpu.runs.run import Run
from nbmgpu.serialization.container import is_complete
from nbmgpu.system.parent_death import die_with_parent
from nbmgpu.system.processes import process_is_alive
from nbmgpu.system.shared_memory import SharedMemory
from nbmgpu.system.worker_sockets import use_socket_folder

from .reference_process import ReferenceProcess

KERNEL_ENDED = "The kernel has ended before it had sent the cell's data."

LOOPBACK = "lo" if sys.platform == "linux" else ""
"""Ranks of one machine communicate over this interface alone."""


class LocalRanks(RankProcesses):
    """Ranks on this machine, started by the launcher."""

    def __init__(self, run: Run) -> None:
        """Prepare the ranks of ``run``; none is started yet."""
        self.run = run
        self.world_size = run.record.world_size
        self._waits_for_kernel = run.record.options.detached

    def problem(self) -> str:
        """Return that a detached run waits for data that its kernel will never send."""
        record = self.run.record
        self._waits_for_kernel = self._waits_for_kernel and not is_complete(record.storage.bundle)
        if not self._waits_for_kernel:
            return ""
        kernel = record.kernel
        return "" if process_is_alive(kernel.pid, kernel.create_time) else KERNEL_ENDED

    @abstractmethod
    def start(self, socket_folder: str, init_method: str) -> None:
        """Start every rank.

        Args:
            socket_folder: where ranks and their children put their sockets; may be empty.
            init_method: see ``RankEnvironment``.
        """


class ForkedRanks(LocalRanks):
    """The ranks of one node, forked from its launcher, which has torch imported and one thread."""

    def __init__(
        self, run: Run, node_rank: int = 0, host: str = "", interface: str = LOOPBACK
    ) -> None:
        """Prepare the ranks; none is started yet.

        Args:
            run: the run.
            node_rank: number of this node.
            host: its name, if there are several.
            interface: network interface for gloo and NCCL; empty for their own choice.
        """
        super().__init__(run)
        self._node_rank = node_rank
        self._host = host
        self._interface = interface
        self._reference = ReferenceProcess(run)

    @property
    def numbers(self) -> range:
        """The numbers of this node's ranks."""
        size = self.run.record.ranks_per_node
        return range(self._node_rank * size, (self._node_rank + 1) * size)

    @property
    def pids(self) -> list[int]:
        """Pids of the ranks that have not been waited for."""
        return list(self._pids.values())

    def start(self, socket_folder: str, init_method: str) -> None:
        """Fork every rank."""
        use_socket_folder(socket_folder)
        self._pids: dict[int, int] = {}
        launcher = os.getpid()
        size, nodes = self.run.record.ranks_per_node, self.run.record.nodes
        shared_memory = SharedMemory.create(size) if size > 1 and nodes == 1 else None
        if self.run.record.options.verify and size > 1 and nodes == 1:
            reference.begin(self.run.folder)  # before ranks look for it
            self._start_reference(launcher)
        for local_rank, rank in enumerate(self.numbers):
            pid = os.fork()
            if pid == 0:
                from nbmgpu.rank.main import run_rank

                os.setsid()  # SIGINT to the kernel's group is not for ranks; torchrun does the same
                environment = RankEnvironment(
                    rank,
                    self.world_size,
                    local_rank=local_rank,
                    local_world_size=size,
                    node_rank=self._node_rank,
                    nodes=nodes,
                    host=self._host,
                    init_method=init_method,
                    interface=self._interface,
                    parent=launcher,
                    shared_memory=shared_memory,
                )
                run_rank(self.run, environment)
            self._pids[rank] = pid

    def _start_reference(self, launcher: int) -> None:
        def run() -> None:
            from nbmgpu.rank.reference.process import run_reference

            interface = self._interface
            run_reference(
                self.run, RankEnvironment(0, 1, 0, 1, interface=interface, parent=launcher)
            )

        self._reference.start(run)

    def is_verified(self) -> bool:
        """Return whether to wait for the reference, now that all ranks have ended."""
        return self._reference.is_awaited()

    def end_verification(self) -> None:
        """End the reference, and remove what ranks have recorded for it."""
        self._reference.report_late()
        self._reference.kill()
        reference.remove(self.run.folder)

    def alive(self) -> bool:
        """Return whether there is a rank that has not been waited for."""
        return bool(self._pids)

    def poll(self) -> list[tuple[int, int]]:
        """Wait for ranks that ended."""
        self._reference.poll()
        ended = []
        for rank, pid in list(self._pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._pids[rank]
                ended.append((rank, os.waitstatus_to_exitcode(status)))
        return ended

    def signal(self, sig: signal.Signals, others: bool = False) -> None:
        """Signal ranks; a pid cannot be reused until it is waited for.

        Signals that end them end the reference.
        """
        for rank, pid in self._pids.items():
            if rank or not others:
                os.kill(pid, sig)
        if sig in (signal.SIGINT, signal.SIGKILL):
            self._reference.kill()


class TorchrunRanks(LocalRanks):
    """Ranks started by torchrun in new processes, for ``--fresh``."""

    def start(self, socket_folder: str, init_method: str) -> None:
        """Start torchrun on ``python -m nbmgpu.rank``."""
        logs = self.run.folder / "logs"
        self._log = logs / "torchrun.log"
        rank = rank_command(self.run.folder, init_method, LOOPBACK, socket_folder)
        command = [
            *(sys.executable, "-m", "nbmgpu.engines.local.torchrun"),
            *("--nnodes=1", f"--nproc-per-node={self.world_size}"),
            f"--rdzv-endpoint={os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
            f"--log-dir={logs / 'torchrun'}",  # else it leaves a folder in the working directory
            *rank.arguments,
        ]
        environment = os.environ | rank.variables | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3"}
        for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
            environment.pop(name)
        launcher = os.getpid()
        with self._log.open("wb") as log:
            self._torchrun = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=lambda: die_with_parent(launcher, signal.SIGKILL),  # noqa: PLW1509
            )  # fmt: skip
        self._reported = False

    def alive(self) -> bool:
        """Return whether torchrun runs, or its end was not reported yet."""
        return not self._reported

    def poll(self) -> list[tuple[int, int]]:
        """Return all ranks once torchrun has ended, the first to fail first."""
        code = self._torchrun.poll()
        if code is None:
            return []
        self._reported = True
        report = self._log.read_text(errors="replace")
        others, _, root = report.partition("Root Cause")
        found = re.findall(
            r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)", root + others
        )
        failed = {int(rank): int(exit_code) for rank, exit_code in found}
        if code and not failed:
            failed = {0: code}
        succeeded = dict.fromkeys(set(range(self.world_size)) - failed.keys(), 0)
        return [*failed.items(), *succeeded.items()]

    def signal(self, sig: signal.Signals, others: bool = False) -> None:
        """Signal the ranks by the pids they have reported; with SIGKILL, torchrun too."""
        self.run.refresh()
        for rank, view in enumerate(self.run.view.ranks):
            if view.process is not None and (rank or not others):
                _signal_process(view.process.pid, view.process.create_time, sig)
        if sig == signal.SIGKILL and not others:
            time.sleep(0.05)
            self._torchrun.kill()


def _signal_process(pid: int, create_time: float, sig: signal.Signals) -> None:
    if process_is_alive(pid, create_time):
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, sig)
