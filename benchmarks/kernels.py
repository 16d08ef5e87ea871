"""A Jupyter kernel, and the time that cells take in it."""

from __future__ import annotations

import os
import queue
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

from .processes import ToolProcesses

BLOCKED_COMMANDS = Path(__file__).parent / "blocked_commands"
STAMP_TIMEOUT = 60
"""Seconds to wait for the ranks' stamps after their cell has returned."""

BUSY = 0.05
"""CPU seconds per second from which processes count as busy."""

QUIET = {"TQDM_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


class CellError(RuntimeError):
    """A cell raised an exception; the message is the end of its traceback."""


@dataclass(frozen=True)
class ExecutedCell:
    """An executed cell: when it was sent and when the kernel replied, in seconds of the clock."""

    sent: float
    replied: float
    text: str


class Kernel:
    """One kernel for one tool; ``close`` ends it and all processes that it started."""

    def __init__(self, folder: Path) -> None:
        """Start a kernel whose ranks write their stamps to ``folder``."""
        self.folder, self._output = folder, ""
        self._processes = ToolProcesses("BENCH_FOLDER", str(folder))
        self._manager = KernelManager()
        # As in an activated environment, and without pkill.
        path = os.pathsep.join(
            [str(BLOCKED_COMMANDS), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        environment = os.environ | QUIET | {"BENCH_FOLDER": str(folder), "PATH": path}
        self._manager.start_kernel(env=environment, cwd=str(folder))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)

    def run(self, cell: str, timeout: float = 600) -> ExecutedCell:
        """Run ``cell`` to its end.

        Raises:
            CellError: it raised.
            TimeoutError: it took longer than ``timeout`` seconds.
        """
        sent = time.time()
        request = self._client.execute(cell)
        text: list[str] = []
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"no message for {timeout:g} s") from None
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                text.append(content["text"])
            elif message["msg_type"] == "error":
                raise CellError("\n".join([*text, *content["traceback"]])[-3000:])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                self._output = "".join(text).strip()
                return ExecutedCell(sent, time.time(), "".join(text))

    def panel_response_times(
        self, cell: str, request_content: dict[str, Any], every: float = 0.5
    ) -> list[float]:
        """Run ``cell`` and send requests to its panel, as a page does; return the response times.

        Raises:
            CellError: it raised.
        """
        request, waits, panel = self._client.execute(cell), [], ""
        asked, next_ = 0.0, time.time() + every
        while True:
            if panel and not asked and time.time() > next_:
                content = {"kind": "ask", "id": len(waits), **request_content}
                data = {"method": "custom", "content": content}
                message = self._client.session.msg("comm_msg", {"comm_id": panel, "data": data})
                asked = time.time()
                self._client.shell_channel.send(message)
            try:
                message = self._client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "comm_open" and "curves" in content["data"].get("state", {}):
                panel = content["comm_id"]
            elif kind == "comm_msg" and content["data"].get("method") == "custom":
                waits.append(time.time() - asked)
                asked, next_ = 0.0, time.time() + every
            elif message["parent_header"].get("msg_id") != request:
                continue
            elif kind == "error":
                raise CellError("\n".join(content["traceback"])[-3000:])
            elif kind == "status" and content["execution_state"] == "idle":
                return waits

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        return int(self._manager.provisioner.process.pid)  # type: ignore[union-attr]

    def cpu_seconds(self) -> float:
        """Return the CPU time that the kernel's own process has used so far."""
        return sum(psutil.Process(self.pid).cpu_times()[:2])

    def settle(self) -> None:
        """Wait until the kernel and its child processes are idle.

        They import in the background, and that memory would be counted as a run's.
        """
        before = -BUSY
        while (used := self._cpu_seconds_of_all()) - before >= BUSY:
            before = used
            time.sleep(1)

    def _cpu_seconds_of_all(self) -> float:
        kernel = psutil.Process(self.pid)
        return sum(sum(each.cpu_times()[:2]) for each in (kernel, *kernel.children(recursive=True)))

    def stamps(self, ranks: int, name: str = "stamp") -> list[float]:
        """Return the times that the ranks have written, and remove the files.

        Raises:
            TimeoutError: one of them has written none.
        """
        paths = [self.folder / f"{name}-{rank}" for rank in range(ranks)]
        deadline = time.time() + STAMP_TIMEOUT
        while not all(path.exists() and path.read_text() for path in paths):
            if time.time() > deadline:
                # Some tools print errors instead of raising them.
                last = (
                    f"; the cell printed: {self._output.splitlines()[-1]}" if self._output else ""
                )
                raise TimeoutError(f"no {name} of a rank within {STAMP_TIMEOUT} s{last}")
            time.sleep(0.01)
        times = [float(path.read_text()) for path in paths]
        for path in paths:
            path.unlink()
        return times

    def close(self) -> None:
        """End the kernel and all processes with its environment; remove their shared memory.

        The manager comes last: it kills the kernel's process group at once, resource trackers
        included, and the semaphores of killed processes would stay in ``/dev/shm``.
        """
        self._client.stop_channels()
        self._processes.end()
        self._manager.shutdown_kernel(now=True)
