"""The TensorBoards of this server: a process for each folder that somebody looks at."""

from __future__ import annotations

import importlib.util
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from .http_errors import ApiError
from .tensorboard_app import READY

MOST = 4
"""Processes at a time; another one replaces that which was used the longest ago."""

START = 60.0
"""Seconds that TensorBoard may take to start; it usually takes a few."""


def is_installed() -> bool:
    """Return whether TensorBoard is installed in the environment of this server."""
    return importlib.util.find_spec("tensorboard") is not None


class TensorBoardProcess:
    """TensorBoard for one folder.  It ends with this object, or with this process."""

    def __init__(self, folder: str, prefix: str) -> None:
        """Start it.

        Args:
            folder: what it shows.
            prefix: the path of its pages.
        """
        self._place = Path(tempfile.mkdtemp(prefix="nbmgpu-tb-"))  # of mode 0700
        self.socket = self._place / "socket"
        self._lock = threading.Lock()
        self._is_ready = False
        self._failure: ApiError | None = None
        module = "nbmgpu.server.tensorboard_app"
        with (self._place / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, folder, prefix, str(self.socket)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        """Return whether the process has not ended."""
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until it answers requests.

        Raises:
            ApiError: it has failed, or takes too long.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._is_ready:
                return
            assert self._process.stdout is not None
            arrived, _, _ = select.select([self._process.stdout], [], [], START)
            self._is_ready = bool(arrived) and self._process.stdout.readline() == READY
            if not self._is_ready:
                reason = self._last_line() if arrived else f"It took more than {START:.0f} s."
                self._failure = ApiError(502, f"TensorBoard did not start. {reason}".strip())
                raise self._failure

    def end(self) -> None:
        """End the process, and remove its folder."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(self._place, ignore_errors=True)

    def _last_line(self) -> str:
        with suppress(OSError):
            lines = (self._place / "log").read_text(errors="replace").strip().splitlines()
            return lines[-1][:400] if lines else ""
        return ""


class TensorBoards:
    """All processes, by folder. Thread-safe."""

    def __init__(self) -> None:
        """Start without any."""
        self._running: OrderedDict[tuple[str, str], TensorBoardProcess] = OrderedDict()
        self._lock = threading.Lock()
        self._is_closed = False

    def socket(self, folder: str, prefix: str) -> Path:
        """Return the socket of TensorBoard for ``folder``, started if necessary.

        Raises:
            ApiError: it cannot be started.
        """
        key = folder, prefix
        ended: list[TensorBoardProcess] = []
        with self._lock:
            if self._is_closed:
                raise ApiError(503, "The server is shutting down.")
            process = self._running.pop(key, None)
            if process is not None and not process.is_alive():
                ended.append(process)
                process = None
            if process is None:
                process = TensorBoardProcess(folder, prefix)
            self._running[key] = process
            while len(self._running) > MOST:
                ended.append(self._running.popitem(last=False)[1])
        for each in ended:
            each.end()
        try:
            process.wait_until_ready()
        except ApiError:
            with self._lock:
                if self._running.get(key) is process:
                    del self._running[key]
            process.end()
            raise
        return process.socket

    def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._is_closed = True
            running, self._running = self._running, OrderedDict()
        for process in running.values():
            process.end()
