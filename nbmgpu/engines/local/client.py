"""The launch server as the kernel knows it: started, asked for runs, replaced when outdated."""

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

from nbmgpu.errors import LaunchError

from .preload import OFTEN, libraries_here
from .process_environment import Inheritance

if TYPE_CHECKING:
    from nbmgpu.runs.run import Run

SERVE = """import sys
sys.path[:] = sys.argv[1:]
del sys.argv[1:]
from nbmgpu.engines.local.fork_server import main
main()"""
"""With this process's modules, in its order: ``-m`` and ``PYTHONPATH`` would put the notebook's
folder before Python's own, and a file ``random.py`` in it would be taken for Python's."""

IDLE = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    "DS_ACCELERATOR": "cpu",
}
"""The server must stay single-threaded: these libraries start threads when they are loaded.
And whoever asks torch for GPUs there must not open one."""


TORCH_READS = ("TORCH", "PYTORCH")
"""How the variables begin that torch reads once, when it is imported: a server has those of its
start for ever."""

SET_BY_LIBRARIES = IDLE.keys() | {"TORCHINDUCTOR_CACHE_DIR"}
"""Among them, what torch and Lightning set themselves when they are imported in the notebook."""


class LaunchClient:
    """The kernel's end of the standing process that launches its runs."""

    def __init__(self) -> None:
        """Start the process; it is ready some moments later, requests wait until then."""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._owner = os.getpid()
        self._wished: set[str] = set()
        self._writing = threading.Lock()
        self._torch_reads = torch_reads()
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *(p for p in sys.path if p and isinstance(p, str))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=os.environ | IDLE,
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether the server can take requests of this very process."""
        return self._owner == os.getpid() and self._process.poll() is None

    @property
    def outdated(self) -> bool:
        """Whether torch, which the server has imported, would read other settings now."""
        return self._torch_reads != torch_reads()

    def cpu_seconds(self) -> float:
        """Return the processor time that the server, with all it has forked, has used so far."""
        try:
            server = psutil.Process(self._process.pid)
            own = sum(server.cpu_times()[:4])  # with that of children that have ended
            return own + sum(sum(child.cpu_times()[:2]) for child in server.children())
        except psutil.NoSuchProcess:
            return 0.0

    def launch(self, run: Run) -> None:
        """Ask for ``run`` to be started, with the environment of now.

        Raises:
            LaunchError: the server has died.
        """
        try:
            here = [name for name in OFTEN if name in sys.modules]
            self._ask({"folder": str(run.folder), "modules": here})
        except OSError as error:
            raise LaunchError(f"The launch server has ended: {error}\n{self.errors()}") from None

    def preload(self, modules: Iterable[str] = ()) -> None:
        """Let the server import ``modules``, and the libraries that this process has imported."""
        wanted = {*libraries_here(), *modules} - self._wished
        if wanted and self.alive:
            self._wished |= wanted
            # More than a pipe holds: the server may take its time to read it.
            request = {"modules": sorted(wanted)}
            with suppress(RuntimeError):  # no thread is to be had: ranks import it themselves
                threading.Thread(target=self._wish, args=(request,), daemon=True).start()

    def _wish(self, request: dict[str, object]) -> None:
        try:
            self._ask(request)
        except (OSError, ValueError):
            pass  # the server has ended; the next run says so

    def _ask(self, request: dict[str, object]) -> None:
        inheritance = asdict(Inheritance.of_now())
        line = json.dumps(request | {"inheritance": inheritance}).encode() + b"\n"
        with self._writing:
            assert self._process.stdin is not None
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def retire(self) -> None:
        """Let the server end with the last of the runs that it has started."""
        # It may be busy, and the lines before have to be written.
        threading.Thread(target=self._hang_up, daemon=True).start()

    def _hang_up(self) -> None:
        with self._writing, suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def errors(self) -> str:
        """Return what the server wrote to stderr, the last lines."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def close(self) -> None:
        """End the server, and with it every run that it has started."""
        if self._owner != os.getpid():
            return
        self._process.kill()  # launchers are told by the system, and end their ranks
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._errors.close()


def torch_reads() -> dict[str, str]:
    """Return the variables that torch reads when it is imported, as they are now."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(TORCH_READS) and name not in SET_BY_LIBRARIES
    }


_client: LaunchClient | None = None

_retired: list[LaunchClient] = []
"""Those that are not asked any more, and whose runs may go on."""


def launch_client() -> LaunchClient:
    """Return the client of this process's launch server; a new one where its environment is old."""
    global _client
    _retired[:] = [old for old in _retired if old.alive]
    if _client is not None and _client.alive and _client.outdated:
        _client.retire()
        _retired.append(_client)
        _client = None
    if _client is None or not _client.alive:
        _client = LaunchClient()
        atexit.register(_client.close)
    return _client
