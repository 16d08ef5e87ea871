"""A real kernel that tests can talk to, and what it said, message by message."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import KernelManager
from jupyter_core.utils import ensure_event_loop

REPOSITORY = Path(__file__).parents[2]
WIDGET = "application/vnd.jupyter.widget-view+json"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


class Output:
    """One message of a cell, with the moment at which it arrived."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.kind: str = message["msg_type"]
        self.content: dict[str, Any] = message["content"]
        self.time = time.monotonic()

    def __repr__(self) -> str:
        return f"<{self.kind} {str(self.content)[:300]}>"


class ExecutedCell:
    """A cell that was sent to the kernel: its outputs so far, and its reply once there is one."""

    def __init__(self, notebook: Notebook, source: str) -> None:
        self.notebook = notebook
        self.source = source
        self.started = time.monotonic()
        self.outputs: list[Output] = []
        self.idle = threading.Event()
        self.reply: dict[str, Any] = {}
        self.replied = 0.0

    def wait(self, timeout: float = 60) -> ExecutedCell:
        """Wait for the reply and for all of the output."""
        deadline = time.monotonic() + timeout
        while not self.reply:
            self.notebook.read_replies(deadline)
        assert self.idle.wait(max(1, deadline - time.monotonic())), self.outputs
        return self

    def ok(self, timeout: float = 60) -> ExecutedCell:
        """Wait, and fail unless the cell succeeded."""
        self.wait(timeout)
        assert self.reply["status"] == "ok", "\n".join(self.reply.get("traceback", ["aborted"]))
        return self

    def fails(self, ename: str, timeout: float = 60) -> str:
        """Wait for the exception ``ename``; return its traceback as plain text."""
        self.wait(timeout)
        assert self.reply["status"] == "error", self.outputs
        assert self.reply["ename"] == ename, "\n".join(self.reply["traceback"])
        return ANSI.sub("", "\n".join(self.reply["traceback"]))

    def of(self, kind: str) -> list[Output]:
        return [output for output in self.outputs if output.kind == kind]

    def text(self, name: str = "stdout") -> str:
        """Everything that the cell wrote to a stream."""
        return "".join(o.content["text"] for o in self.of("stream") if o.content["name"] == name)

    @property
    def seen(self) -> list[str]:
        """What a reader of the cell sees, in order: prints, displays and the result."""
        found: list[str] = []
        streams = False
        for output in list(self.outputs):
            match output.kind:
                case "stream":
                    text = output.content["text"]
                    found[len(found) - streams :] = [found[-1] + text if streams else text]
                case "display_data" | "execute_result":
                    data = output.content["data"]
                    if WIDGET not in data:
                        found.append("<png>" if "image/png" in data else data["text/plain"])
                case _:
                    continue
            streams = output.kind == "stream"
        return found

    def time_of(self, text: str) -> float:
        """The moment at which ``text`` was first printed, from the cell's start."""
        for output in self.of("stream"):
            if text in output.content["text"]:
                return output.time - self.started
        raise AssertionError(f"{text!r} is not in {self.outputs}")

    def until(self, text: str, timeout: float = 60) -> ExecutedCell:
        """Wait until ``text`` is in the output."""
        wait_for(lambda: any(text in shown for shown in self.seen), timeout, self)
        return self


class Notebook:
    """A kernel in folders of its own."""

    def __init__(self, home: Path, within: Sequence[str] = (), **environment: str) -> None:
        """Start a kernel; ``within`` is a command that goes before its own and ends in it."""
        self.home = home
        self.runs = home / "runs"
        self.environment = os.environ | {
            "NBMGPU_RUNS": str(self.runs),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "IPYTHONDIR": str(home / "ipython"),
            "PYTHONPATH": str(REPOSITORY),
        }
        self.environment |= environment
        if "NBMGPU_RUNS" in environment:
            self.runs = Path(environment["NBMGPU_RUNS"])
        for name in ("runtime", "work"):
            (home / name).mkdir(parents=True, exist_ok=True)
        self.manager = KernelManager(connection_file=str(home / "runtime" / "kernel.json"))
        spec = self.manager.kernel_spec
        assert spec is not None
        spec.argv = [*within, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        spec.argv.append("--HistoryManager.enabled=False")  # its journal comes and goes
        self.manager.start_kernel(env=self.environment, cwd=str(home / "work"))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.cells: dict[str, ExecutedCell] = {}
        self._lock = threading.Lock()
        self._stopping = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.run("import os; pid = os.getpid()")
        self.pid = int(self.value("pid"))

    def _listen(self) -> None:
        while not self._stopping:
            try:
                message = self.client.get_iopub_msg(timeout=0.2)
            except queue.Empty:
                continue
            self._receive(message)
        ensure_event_loop().close()  # the client's own, one for each thread

    def _receive(self, message: dict[str, Any]) -> None:
        with self._lock:
            cell = self.cells.get(message["parent_header"].get("msg_id", ""))
        if cell is None:
            return
        if message["msg_type"] != "status":
            cell.outputs.append(Output(message))
        elif message["content"]["execution_state"] == "idle":
            cell.idle.set()

    def send(self, source: str) -> ExecutedCell:
        """Begin to execute a cell."""
        cell = ExecutedCell(self, source)
        with self._lock:  # its first messages may be there before we know its name
            self.cells[self.client.execute(source)] = cell
        return cell

    def run(self, source: str, timeout: float = 60) -> ExecutedCell:
        """Execute a cell that must succeed."""
        return self.send(source).ok(timeout)

    def read_replies(self, deadline: float) -> None:
        """Hand out the next reply, or say which cells had none in time."""
        try:
            message = self.client.get_shell_msg(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            waiting = [c for c in self.cells.values() if not c.reply]
            shown = "\n".join(f"{c.source}\n{c.outputs}" for c in waiting)
            raise AssertionError(f"no reply in time:\n{shown}\n{self.processes()}") from None
        cell = self.cells.get(message["parent_header"].get("msg_id", ""))
        if cell is not None:
            cell.reply, cell.replied = message["content"], time.monotonic()

    def value(self, expression: str) -> Any:
        """Return a value of the kernel, through its repr."""
        import ast

        shown = self.run(f"print(repr(({expression})), end='')").text()
        return ast.literal_eval(shown)

    def newest_log(self, rank: int) -> str:
        """What a rank of the newest run has written."""
        return (max(self.runs.iterdir()) / "logs" / f"rank-{rank}.log").read_text()

    def interrupt(self) -> float:
        """Interrupt the kernel as a front end does; return when."""
        self.manager.interrupt_kernel()
        return time.monotonic()

    def descendants(self) -> list[psutil.Process]:
        """Every process below the kernel."""
        return psutil.Process(self.pid).children(recursive=True)

    def server(self) -> psutil.Process:
        """The fork server."""
        children = psutil.Process(self.pid).children()
        (server,) = (p for p in children if p.status() != psutil.STATUS_ZOMBIE)
        return server

    def workers(self) -> list[psutil.Process]:
        """Processes of runs: all below the kernel but the fork server."""
        found = []
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                lives = process.status() != psutil.STATUS_ZOMBIE
                if lives and process.ppid() != self.pid:
                    found.append(process)
        return found

    def processes(self) -> list[str]:
        lines = []
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                lines.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())}")
        return lines

    def gone(self, timeout: float) -> float:
        """Wait until no process of a run is left; return the moment."""
        wait_for(lambda: not self.workers(), timeout, self.processes)
        return time.monotonic()

    def load(self) -> Notebook:
        """Load the extension, and wait until its fork server has warmed up."""
        self.run("%load_ext nbmgpu")
        self.run("%%mgpu --gpus 2 --strategy none\npass", 120)
        return self

    def close(self) -> None:
        self._stopping = True
        self._listener.join(5)
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        self.manager.cleanup_resources()
        ensure_event_loop().close()


def wait_for(condition: Callable[[], object], timeout: float, explain: Any = None) -> None:
    """Wait until ``condition()`` holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            shown = explain() if callable(explain) else getattr(explain, "outputs", explain)
            raise AssertionError(f"not within {timeout} s: {shown}")
        time.sleep(0.01)


@contextlib.contextmanager
def notebook_in(home: Path, within: Sequence[str] = (), **environment: str) -> Iterator[Notebook]:
    """A kernel for a while."""
    notebook = Notebook(home, within, **environment)
    try:
        yield notebook
    finally:
        notebook.close()
