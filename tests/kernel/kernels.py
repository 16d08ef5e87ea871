"""Starts real kernels, executes cells in them and records their messages."""

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
    """One message of a cell, with its time of arrival."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.kind: str = message["msg_type"]
        self.content: dict[str, Any] = message["content"]
        self.time = time.monotonic()

    def __repr__(self) -> str:
        return f"<{self.kind} {str(self.content)[:300]}>"


class ExecutedCell:
    """A cell sent to the kernel, with its outputs so far and its reply."""

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
        """The visible output in order: streams, displays and the result."""
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
        """Return after how many seconds ``text`` was first printed."""
        for output in self.of("stream"):
            if text in output.content["text"]:
                return output.time - self.started
        raise AssertionError(f"{text!r} is not in {self.outputs}")

    def until(self, text: str, timeout: float = 60) -> ExecutedCell:
        """Wait until ``text`` is in the output."""
        wait_for(lambda: any(text in shown for shown in self.seen), timeout, self)
        return self


class Notebook:
    """A kernel with its own folders."""

    def __init__(self, folder: Path, wrapper: Sequence[str] = (), **environment: str) -> None:
        """Start a kernel; ``wrapper`` is a command that gets the kernel's command as arguments."""
        self.folder = folder
        self.runs = folder / "runs"
        self.environment = os.environ | {
            "NBMGPU_RUNS": str(self.runs),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "IPYTHONDIR": str(folder / "ipython"),
            "PYTHONPATH": str(REPOSITORY),
        }
        self.environment |= environment
        if "NBMGPU_RUNS" in environment:
            self.runs = Path(environment["NBMGPU_RUNS"])
        for name in ("runtime", "work"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.manager = KernelManager(connection_file=str(folder / "runtime" / "kernel.json"))
        spec = self.manager.kernel_spec
        assert spec is not None
        arguments = ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
        # SQLite opens and closes temporary files, which tests of open files would count.
        arguments.append("--HistoryManager.enabled=False")
        spec.argv = [*wrapper, sys.executable, *arguments]
        self.manager.start_kernel(env=self.environment, cwd=str(folder / "work"))
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
        ensure_event_loop().close()  # the client creates one per thread

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
        """Start executing a cell."""
        cell = ExecutedCell(self, source)
        with self._lock:  # messages may arrive before the id is known
            self.cells[self.client.execute(source)] = cell
        return cell

    def run(self, source: str, timeout: float = 60) -> ExecutedCell:
        """Execute a cell that must succeed."""
        return self.send(source).ok(timeout)

    def read_replies(self, deadline: float) -> None:
        """Assign the next reply to its cell; fail with the cells that have none at ``deadline``."""
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
        """Evaluate an expression in the kernel; its value must be a literal."""
        import ast

        shown = self.run(f"print(repr(({expression})), end='')").text()
        return ast.literal_eval(shown)

    def newest_log(self, rank: int) -> str:
        """Return the log of a rank of the newest run."""
        return (max(self.runs.iterdir()) / "logs" / f"rank-{rank}.log").read_text()

    def interrupt(self) -> float:
        """Interrupt the kernel as a front end does; return the time."""
        self.manager.interrupt_kernel()
        return time.monotonic()

    def descendants(self) -> list[psutil.Process]:
        """Return all descendant processes of the kernel."""
        return psutil.Process(self.pid).children(recursive=True)

    def fork_server(self) -> psutil.Process:
        """Return the fork server's process."""
        children = psutil.Process(self.pid).children()
        (server,) = (p for p in children if p.status() != psutil.STATUS_ZOMBIE)
        return server

    def run_processes(self) -> list[psutil.Process]:
        """Return all descendant processes of the kernel except the fork server."""
        found = []
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.ppid() != self.pid:
                    found.append(process)
        return found

    def processes(self) -> list[str]:
        lines = []
        for process in self.descendants():
            with contextlib.suppress(psutil.NoSuchProcess):
                lines.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())}")
        return lines

    def wait_for_ranks_to_exit(self, timeout: float) -> float:
        """Wait until no process of a run is left; return the time."""
        wait_for(lambda: not self.run_processes(), timeout, self.processes)
        return time.monotonic()

    def load(self) -> Notebook:
        """Load the extension and complete one run, which warms up the fork server."""
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
    """Wait until ``condition()`` is true."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            shown = explain() if callable(explain) else getattr(explain, "outputs", explain)
            raise AssertionError(f"not within {timeout} s: {shown}")
        time.sleep(0.01)


@contextlib.contextmanager
def notebook_in(
    folder: Path, wrapper: Sequence[str] = (), **environment: str
) -> Iterator[Notebook]:
    """Start a kernel, and shut it down on exit."""
    notebook = Notebook(folder, wrapper, **environment)
    try:
        yield notebook
    finally:
        notebook.close()
