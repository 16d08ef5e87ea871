"""The ranks of a run, as the launcher holds them: by pid, never by name."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress

from nbmgpu.runs.run import Run
from nbmgpu.system.parent_death import die_with_parent
from nbmgpu.system.processes import process_is_alive
from nbmgpu.system.shared_memory import SharedMemory

from . import cleanup


class Ranks(ABC):
    """All ranks of one run.  ``poll`` tells who ended since the last call."""

    def __init__(self, run: Run) -> None:
        """Hold the ranks of ``run``, not started yet."""
        self.run = run
        self.world_size = run.record.world_size

    @abstractmethod
    def start(self, sockets: str) -> None:
        """Start every rank; what they start puts its sockets into the folder ``sockets``."""

    @abstractmethod
    def alive(self) -> bool:
        """Tell whether some rank is left whose end ``poll`` has not told."""

    @abstractmethod
    def poll(self) -> list[tuple[int, int]]:
        """Return ``(rank, exit code)`` of ranks that ended; codes as in subprocess."""

    @abstractmethod
    def signal(self, sig: signal.Signals, others: bool = False) -> None:
        """Send ``sig`` to the ranks that live, with ``others`` to those other than rank 0."""

    def sweep(self, forked: cleanup.ForkedPids) -> None:
        """End and remove what ranks have left behind: loader workers, shell commands, files."""
        self.run.refresh()
        pids = [view.process.pid for view in self.run.view.ranks if view.process is not None]
        cleanup.sweep(pids, forked, self.run.record.created)


class ForkedRanks(Ranks):
    """Ranks forked from the launcher, which has torch imported and one thread."""

    def start(self, sockets: str) -> None:
        """Fork every rank."""
        cleanup.put_sockets_into(sockets)
        self._pids: dict[int, int] = {}
        launcher = os.getpid()
        on_cpu = all(device == "cpu" for device in self.run.record.devices)
        shared_memory = (
            SharedMemory.create(self.world_size) if on_cpu and self.world_size > 1 else None
        )
        for rank in range(self.world_size):
            pid = os.fork()
            if pid == 0:
                from nbmgpu.rank.main import be_forked

                be_forked(self.run, rank, launcher, shared_memory)
            self._pids[rank] = pid

    def alive(self) -> bool:
        """Tell whether some rank has not been waited for."""
        return bool(self._pids)

    def poll(self) -> list[tuple[int, int]]:
        """Wait for ranks that ended."""
        ended = []
        for rank, pid in list(self._pids.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del self._pids[rank]
                ended.append((rank, os.waitstatus_to_exitcode(status)))
        return ended

    def signal(self, sig: signal.Signals, others: bool = False) -> None:
        """Signal ranks; a pid stays ours until it is waited for."""
        for rank, pid in self._pids.items():
            if rank or not others:
                os.kill(pid, sig)


class TorchrunRanks(Ranks):
    """Ranks started by a cold torchrun, as anybody can do by hand."""

    def start(self, sockets: str) -> None:
        """Start torchrun on ``python -m nbmgpu.rank <folder> <sockets> <variables>``."""
        logs = self.run.folder / "logs"
        self._log = logs / "torchrun.log"
        command = [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes=1", f"--nproc-per-node={self.world_size}"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
            f"--log-dir={logs / 'torchrun'}",  # else it leaves a folder wherever others are
            *("-m", "nbmgpu.rank", str(self.run.folder), sockets),
        ]
        started_with = {
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
            "PYTHONSAFEPATH": "1",  # else the notebook's folder would be before Python's own
            # Ranks shall have sets of strings in one order: what is made of them is paired by it.
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        }
        command.append(json.dumps({name: os.environ.get(name) for name in started_with}))
        environment = os.environ | started_with | {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "3"}
        for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"):
            environment.pop(name)
        launcher = os.getpid()
        with self._log.open("wb") as log:
            self._torchrun = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=lambda: die_with_parent(launcher, signal.SIGKILL),  # noqa: PLW1509
            )  # fmt: skip
        self._told = False

    def alive(self) -> bool:
        """Tell whether torchrun runs, or its end was not told yet."""
        return not self._told

    def poll(self) -> list[tuple[int, int]]:
        """Return all ranks once torchrun has ended, the first to fail first."""
        code = self._torchrun.poll()
        if code is None:
            return []
        self._told = True
        report = self._log.read_text(errors="replace")
        others, _, root = report.partition("Root Cause")
        found = re.findall(
            r"rank\s+: (\d+) \(local_rank: \d+\)\s+exitcode\s+: (-?\d+)", root + others
        )
        failed = {int(rank): int(exit_code) for rank, exit_code in found}
        if code and not failed:
            failed = {0: code}
        well = dict.fromkeys(set(range(self.world_size)) - failed.keys(), 0)
        return [*failed.items(), *well.items()]

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
