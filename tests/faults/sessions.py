"""Processes that run cells: a plain one, a kernel, and a kernel of a Jupyter server.

All of their folders are in one; ``/dev/shm`` is one of them, in a mount namespace of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from jupyter_core.utils import ensure_event_loop
from jupyter_server_process import BASE, Server, serving

from nbmgpu.runs.run import Run

REPOSITORY = Path(__file__).parents[2]
NAMESPACE = ("unshare", "--mount", "--propagation", "private", "sh", "-c")
OWN_SHM = 'mount --bind "$FAULTS_FOLDER/shm" /dev/shm && exec "$0" "$@"'
MARK = "FAULTS_SESSION"
"""An environment variable that tells the processes of a session from all others."""

PLAIN = "import fault_notebook; fault_notebook.main()"
ANSWER = (
    "import json, fault_notebook; print('\\n' + json.dumps(fault_notebook.answer({request!r})))"
)

can_mount = (
    subprocess.run([*NAMESPACE, "mount -t tmpfs tmpfs /mnt"], check=False, capture_output=True)
).returncode == 0


def wait_for(found: Callable[[], Any], seconds: float, what: str, pause: float = 0.01) -> Any:
    """Wait until ``found()`` is true, and return it; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(pause)
    return value


def children(pid: int) -> list[int]:
    """Return the pids of all children of a process, also of one that has just been forked."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def state_of(pid: int) -> str:
    """Return the letter of a process's state; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def session_of(pid: int) -> int:
    """Return the process session of a process: that of its own for a launcher, not for a trial."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return pid


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class Session:
    """A process that runs one cell at a time, and its folders."""

    def __init__(self, folder: Path, mounts: str = "", **variables: str) -> None:
        """Prepare the folders of a session.

        Args:
            folder: contains them.
            mounts: a shell command that mounts something in the session's own namespace.
            variables: further environment variables.
        """
        self.folder, self.runs, self.shm, self.tmp = (
            folder,
            *(folder / name for name in ("runs", "shm", "tmp")),
        )
        for path in (self.runs, self.shm, self.tmp, folder / "runtime", folder / "work"):
            path.mkdir(parents=True, exist_ok=True)
        self.mark = uuid.uuid4().hex
        self.variables = {
            MARK: self.mark,
            "FAULTS_FOLDER": str(folder),
            "NBMGPU_RUNS": str(self.runs),
            "TMPDIR": str(self.tmp),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "IPYTHONDIR": str(folder / "ipython"),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(Path(__file__).parent)]),
            **variables,
        }
        command = OWN_SHM if not mounts else f"{mounts} && {OWN_SHM}"
        self.wrapper: Sequence[str] = (*NAMESPACE, command) if can_mount else ()
        self.pid = 0
        self.known: set[str] = set()
        self._stack = ExitStack()

    @abstractmethod
    def send(self, request: dict[str, Any]) -> None:
        """Start a cell."""

    @abstractmethod
    def reply(self, seconds: float) -> dict[str, Any]:
        """Wait for the answer to the last request."""

    def ask(self, seconds: float = 120, **request: Any) -> dict[str, Any]:
        """Run a cell to its end; see ``fault_notebook.answer``."""
        self.send({"options": {}, **request})
        return self.reply(seconds)

    def server(self) -> int:
        """Return the pid of the fork server."""
        return int(
            wait_for(
                lambda: next((p for p in children(self.pid) if "fork_server" in command_of(p)), 0),
                60,
                "a fork server",
            )
        )

    def new_run(self, seconds: float = 60) -> Run:
        """Wait for the folder of a run that ``known`` does not have."""

        def found() -> Run | None:
            for name in sorted(set(os.listdir(self.runs)) - self.known, reverse=True):
                with contextlib.suppress(OSError, ValueError, TypeError):
                    return Run(self.runs / name)
            return None

        return wait_for(found, seconds, "a new run", 0.001)

    def processes(self) -> dict[int, str]:
        """Return all processes of this session by pid, wherever they are; zombies do not count."""
        found = {}
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                environment = Path(entry.path, "environ").read_bytes()
                if f"{MARK}={self.mark}".encode() in environment:
                    pid = int(entry.name)
                    if state_of(pid) not in ("", "Z", "X"):
                        found[pid] = f"{pid} {state_of(pid)} {command_of(pid)[:200]}"
        return found

    @property
    def alive(self) -> bool:
        """Whether the process that runs cells is alive."""
        return state_of(self.pid) not in ("", "Z")

    def over(self) -> bool:
        """Whether what has started the notebook's process has ended as well."""
        return not self.alive

    def allowed(self) -> set[int]:
        """Return the pids of processes that stay between runs; none, once this one has ended."""
        if not self.alive:
            return set()
        servers = [p for p in children(self.pid) if "fork_server" in command_of(p)]
        trials = [p for server in servers for p in children(server) if session_of(p) != p]
        return {self.pid, *servers, *trials}

    def close(self) -> None:
        """End all of its processes, and remove its folders."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class PlainSession(Session):
    """A Python process that calls ``nbmgpu.run``."""

    def __init__(self, folder: Path, mounts: str = "", **variables: str) -> None:
        """Start the process."""
        super().__init__(folder, mounts, **variables)
        self.log = self._stack.enter_context((folder / "log").open("wb"))
        self.process = subprocess.Popen(
            [*self.wrapper, sys.executable, "-c", PLAIN],
            env=os.environ | self.variables, cwd=folder / "work", start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip
        self._stack.callback(self._end)
        self.pid = self.process.pid

    def send(self, request: dict[str, Any]) -> None:
        """Start a cell."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def reply(self, seconds: float) -> dict[str, Any]:
        """Wait for the answer to the last request."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"no reply within {seconds} s: {self.processes()}")
        line = self.process.stdout.readline()
        if not line:
            raise EOFError((self.folder / "log").read_text()[-2000:])
        return dict(json.loads(line))

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class KernelSession(Session):
    """A kernel that this process has started."""

    def __init__(self, folder: Path, mounts: str = "", **variables: str) -> None:
        """Start the kernel."""
        super().__init__(folder, mounts, **variables)
        self._answer: list[str] = []
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._start()
        self._run("import os; print(os.getpid())")
        assert self._thread is not None
        self._thread.join(180)
        self.pid = int("".join(self._answer))

    def _start(self) -> None:
        manager = KernelManager(connection_file=str(self.folder / "runtime" / "kernel.json"))
        assert manager.kernel_spec is not None
        manager.kernel_spec.argv = [
            *self.wrapper, sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}",
            "--HistoryManager.enabled=False",
        ]  # fmt: skip
        manager.start_kernel(env=os.environ | self.variables, cwd=str(self.folder / "work"))
        self._stack.callback(_end_kernel, manager)
        self._connect(manager.connection_file)

    def _connect(self, connection_file: str) -> None:
        self.client = BlockingKernelClient(connection_file=connection_file)
        self.client.load_connection_file()
        self.client.start_channels()
        self._stack.callback(self.client.stop_channels)
        self._stack.callback(self._end_thread)
        # wait_for_ready gives up at once where the kernel was started by others.
        self.client.kernel_info(reply=True, timeout=180)
        time.sleep(0.5)  # until this client gets what the kernel publishes

    def send(self, request: dict[str, Any]) -> None:
        """Start a cell."""
        self._run(ANSWER.format(request=request))

    def _run(self, source: str) -> None:
        self._answer = []
        self._thread = threading.Thread(target=self._execute, args=(source,), daemon=True)
        self._thread.start()

    def _execute(self, source: str) -> None:
        """Receive what a cell prints until it ends, or the session does: its kernel may be killed.

        ``execute_interactive`` would poll the closed sockets of a killed kernel without a pause.
        """
        request = self.client.execute(source, stop_on_error=False)
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                message = self.client.get_iopub_msg(timeout=0.2)
                if message["parent_header"].get("msg_id") == request:
                    self._receive(message)
                    if message["content"].get("execution_state") == "idle":
                        break
        ensure_event_loop().close()

    def _end_thread(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join(10)

    def _receive(self, message: dict[str, Any]) -> None:
        content = message["content"]
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            self._answer.append(content["text"])
        elif message["msg_type"] == "error":
            self._answer.append("\n".join(content["traceback"]))

    def reply(self, seconds: float) -> dict[str, Any]:
        """Wait for the answer to the last request."""
        assert self._thread is not None
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"no reply within {seconds} s: {self.processes()}")
        *_, last = "".join(self._answer).strip().splitlines()
        return dict(json.loads(last))


class ServerSession(KernelSession):
    """A kernel that a Jupyter server has started."""

    jupyter: Server

    def _start(self) -> None:
        folder = self.folder / "server"
        self.variables["JUPYTER_RUNTIME_DIR"] = str(folder / "runtime")
        self.jupyter = self._stack.enter_context(
            _ended_anyway(serving(folder, wrapper=self.wrapper, **self.variables))
        )
        started = self.jupyter.request(f"{BASE}api/kernels", "POST", {"name": "python3"})
        assert started.status == 201, started
        name = f"kernel-{started.json['id']}.json"
        self._connect(str(folder / "runtime" / name))

    def over(self) -> bool:
        """Whether kernel and server have ended: the kernel is first, if there is time."""
        return super().over() and state_of(self.jupyter.process.pid) in ("", "Z")

    def allowed(self) -> set[int]:
        """Return the pids of processes that stay between runs; none, once the kernel has ended."""
        return {self.jupyter.process.pid, *super().allowed()} if self.alive else set()


def _end_kernel(manager: KernelManager) -> None:
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()
    ensure_event_loop().close()


@contextlib.contextmanager
def _ended_anyway(serving: contextlib.AbstractContextManager[Server]) -> Iterator[Server]:
    """Serve; the server may have been killed, or be suspended, when this is left."""
    with serving as server:
        try:
            yield server
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.process.pid, signal.SIGCONT)
