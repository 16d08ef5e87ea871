"""A real kernel, and what a cell takes in it."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import KernelManager

HARMLESS = Path(__file__).parent / "harmless"
LATE = 60
"""Seconds that ranks may go on after their cell has returned."""

BUSY = 0.05
"""Processor seconds in a second from which processes are at work."""

QUIET = {"TQDM_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}


class CellFailed(RuntimeError):
    """A cell raised; the message is its traceback's end."""


@dataclass(frozen=True)
class Ran:
    """A cell that was run: when it was sent, and when it was answered, in seconds of the clock."""

    sent: float
    answered: float
    text: str


class Kernel:
    """One kernel for one tool; ended with all that it started when closed."""

    def __init__(self, folder: Path) -> None:
        """Start a kernel whose ranks leave their stamps in ``folder``."""
        self.folder, self._said = folder, ""
        self._manager = KernelManager()
        # As in an activated environment; and nobody kills by name.
        path = os.pathsep.join(
            [str(HARMLESS), str(Path(sys.executable).parent), os.environ["PATH"]]
        )
        environment = os.environ | QUIET | {"BENCH_FOLDER": str(folder), "PATH": path}
        self._manager.start_kernel(env=environment, cwd=str(folder))
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=120)

    def run(self, cell: str, timeout: float = 600) -> Ran:
        """Run ``cell`` to its end.

        Raises:
            CellFailed: it raised.
            TimeoutError: it took longer than ``timeout`` seconds.
        """
        sent = time.time()
        request = self._client.execute(cell)
        text: list[str] = []
        while True:
            try:
                message = self._client.get_iopub_msg(timeout=timeout)
            except queue.Empty:
                raise TimeoutError(f"no word for {timeout:g} s") from None
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                text.append(content["text"])
            elif message["msg_type"] == "error":
                raise CellFailed("\n".join([*text, *content["traceback"]])[-3000:])
            elif message["msg_type"] == "status" and content["execution_state"] == "idle":
                self._said = "".join(text).strip()
                return Ran(sent, time.time(), "".join(text))

    def clicks(self, cell: str, question: dict[str, Any], every: float = 0.5) -> list[float]:
        """Run ``cell`` and meanwhile ask its panel, as a page does; return the seconds to answers.

        Raises:
            CellFailed: it raised.
        """
        request, waits, panel = self._client.execute(cell), [], ""
        asked, next_ = 0.0, time.time() + every
        while True:
            if panel and not asked and time.time() > next_:
                content = {"kind": "ask", "id": len(waits), **question}
                data = {"method": "custom", "content": content}
                message = self._client.session.msg("comm_msg", {"comm_id": panel, "data": data})
                asked = time.time()
                self._client.shell_channel.send(message)
            try:
                heard = self._client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                continue
            kind, content = heard["msg_type"], heard["content"]
            if kind == "comm_open" and "curves" in content["data"].get("state", {}):
                panel = content["comm_id"]
            elif kind == "comm_msg" and content["data"].get("method") == "custom":
                waits.append(time.time() - asked)
                asked, next_ = 0.0, time.time() + every
            elif heard["parent_header"].get("msg_id") != request:
                continue
            elif kind == "error":
                raise CellFailed("\n".join(content["traceback"])[-3000:])
            elif kind == "status" and content["execution_state"] == "idle":
                return waits

    @property
    def pid(self) -> int:
        """The kernel's process."""
        return int(self._manager.provisioner.process.pid)  # type: ignore[union-attr]

    def cpu_seconds(self) -> float:
        """Return the processor time that the kernel's own process has used so far."""
        return sum(psutil.Process(self.pid).cpu_times()[:2])

    def settle(self) -> None:
        """Wait until the kernel, and what was started from it, has done what it does by itself.

        That is an import in the background, whose memory would be taken for a run's.
        """
        before = -BUSY
        while (used := self._cpu_seconds_of_all()) - before >= BUSY:
            before = used
            time.sleep(1)

    def _cpu_seconds_of_all(self) -> float:
        kernel = psutil.Process(self.pid)
        return sum(sum(each.cpu_times()[:2]) for each in (kernel, *kernel.children(recursive=True)))

    def stamps(self, ranks: int, name: str = "stamp") -> list[float]:
        """Take the times that the ranks have written down, and remove them.

        Raises:
            TimeoutError: one of them has written none.
        """
        paths = [self.folder / f"{name}-{rank}" for rank in range(ranks)]
        deadline = time.time() + LATE
        while not all(path.exists() and path.read_text() for path in paths):
            if time.time() > deadline:
                # Some tools print what went wrong, and raise nothing.
                said = f"; the cell said: {self._said.splitlines()[-1]}" if self._said else ""
                raise TimeoutError(f"a rank has left no {name} within {LATE} s{said}")
            time.sleep(0.01)
        times = [float(path.read_text()) for path in paths]
        for path in paths:
            path.unlink()
        return times

    def close(self) -> None:
        """End the kernel and everything that was started from it: what has its environment.

        But for trackers of semaphores, which end by themselves, and free what the others have left.
        """
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                ours = process.environ().get("BENCH_FOLDER") == str(self.folder)
                if ours and "resource_tracker" not in " ".join(process.cmdline()):
                    process.kill()
