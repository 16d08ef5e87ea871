"""The fork server as the kernel sees it: started, asked for runs, replaced when outdated."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import IO, TYPE_CHECKING

import psutil

from nbmgpu.engines.base import RunHandle
from nbmgpu.errors import LaunchError

from .preload import COMMON_MODULES, imported_libraries
from .process_environment import ProcessEnvironment

if TYPE_CHECKING:
    from nbmgpu.runs.run import Run

SERVER_COMMAND = """import sys
kernel, sys.path[:] = int(sys.argv[1]), sys.argv[2:]
del sys.argv[1:]
from nbmgpu.engines.local.fork_server import main
main(kernel)"""
"""With this process's pid, and its search path for modules: ``-m`` and ``PYTHONPATH`` would put
the notebook's folder before Python's own, and a file ``random.py`` there would be Python's."""

SINGLE_THREADED = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "DS_ACCELERATOR": "cpu",
}
"""The server must stay single-threaded: these libraries start threads when they are imported.
And a library that asks torch for GPUs there must not open one."""

TORCH_PREFIXES = ("TORCH", "PYTORCH")
"""Prefixes of the variables that torch reads once, when it is imported: a server keeps the values
from its start."""

SET_BY_LIBRARIES = SINGLE_THREADED.keys() | {"TORCHINDUCTOR_CACHE_DIR"}
"""Such variables that torch and Lightning set themselves when the notebook imports them."""


class ForkServerClient(RunHandle):
    """The kernel's end of the fork server that launches its runs."""

    def __init__(self) -> None:
        """Start the server; it is ready some moments later, requests wait until then."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._owner = os.getpid()
        self._requested: set[str] = set()
        self._write_lock = threading.Lock()
        self._torch_variables = torch_variables()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                SERVER_COMMAND,
                str(self._owner),
                *(p for p in sys.path if p and isinstance(p, str)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=os.environ | SINGLE_THREADED,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether the server can take requests of this very process."""
        return self._owner == os.getpid() and self._process.poll() is None

    @property
    def outdated(self) -> bool:
        """Whether torch, which the server has imported, would read other settings now."""
        return self._torch_variables != torch_variables()

    def cpu_seconds(self) -> float:
        """Return the CPU time that the server and all its children have used so far."""
        try:
            server = psutil.Process(self._process.pid)
            own = sum(server.cpu_times()[:4])  # includes children that have ended
            return own + sum(sum(child.cpu_times()[:2]) for child in server.children())
        except psutil.NoSuchProcess:
            return 0.0

    def launch(self, run: Run) -> None:
        """Ask for ``run`` to be started, with this process's environment.

        Raises:
            LaunchError: the server has ended.
        """
        try:
            modules = [name for name in COMMON_MODULES if name in sys.modules]
            detached = run.record.options.detached
            self._send({"folder": str(run.folder), "modules": modules, "detached": detached})
        except OSError as error:
            raise LaunchError(f"The fork server has ended: {error}\n{self.stderr()}") from None

    def error(self) -> str:
        """Return why runs that have not started never will; empty while the server is alive."""
        if self.alive:
            return ""
        return f"The fork server has ended.\n{self.stderr()}".rstrip()

    def preload(self, modules: Iterable[str] = ()) -> None:
        """Let the server import ``modules``, and the libraries that this process has imported."""
        wanted = {*imported_libraries(), *modules} - self._requested
        if wanted and self.alive:
            self._requested |= wanted
            # More than a pipe holds: the server may take its time to read it.
            request = {"modules": sorted(wanted)}
            with suppress(RuntimeError):  # no thread available: ranks import them themselves
                threading.Thread(target=self._send_preload, args=(request,), daemon=True).start()

    def _send_preload(self, request: dict[str, object]) -> None:
        try:
            self._send(request)
        except (OSError, ValueError):
            pass  # the server has ended; the next run reports that

    def _send(self, request: dict[str, object]) -> None:
        environment = asdict(ProcessEnvironment.capture())
        line = json.dumps(request | {"environment": environment}).encode() + b"\n"
        with self._write_lock:
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def retire(self) -> None:
        """Let the server end with the last of the runs that it has started."""
        # In a thread: the server may be busy, and lines written before come first.
        threading.Thread(target=self._close_stdin, daemon=True).start()

    def _close_stdin(self) -> None:
        with self._write_lock, suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def stderr(self) -> str:
        """Return the last lines that the server wrote to stderr."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def close(self) -> None:
        """End the server, and with it every run that it has started, except detached ones."""
        if self._owner != os.getpid():
            return
        self._process.kill()  # the system signals launchers, which end their ranks
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()


def torch_variables() -> dict[str, str]:
    """Return the environment variables that torch reads when it is imported."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(TORCH_PREFIXES) and name not in SET_BY_LIBRARIES
    }


_client: ForkServerClient | None = None

_retired: list[ForkServerClient] = []
"""Clients that accept no more requests, but whose runs may still be active."""


def fork_server_client() -> ForkServerClient:
    """Return the client of this process's fork server; a new one if its environment is outdated."""
    global _client
    _retired[:] = [old for old in _retired if old.alive]
    if _client is not None and _client.alive and _client.outdated:
        _client.retire()
        _retired.append(_client)
        _client = None
    if _client is None or not _client.alive:
        _client = ForkServerClient()
        atexit.register(_client.close)
    return _client
