"""Starts a real Jupyter server with the extension and a base URL, without JupyterLab."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import websocket

REPOSITORY = Path(__file__).parents[1]
BASE = "/hub/user/x/"


@dataclass(frozen=True)
class Response:
    """A response of the server."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """A running server with its address, token and folder of runs."""

    port: int
    token: str
    runs: Path
    process: subprocess.Popen[bytes]
    log: Path

    def request(
        self,
        route: str,
        method: str = "GET",
        body: Any = None,
        token: str | None = None,
        **headers: str,
    ) -> Response:
        """Request a route below ``nbmgpu/api/``, or an absolute path; "" means no token."""
        token = self.token if token is None else token
        path = route if route.startswith("/") else f"{BASE}nbmgpu/api/{route}"
        sent = {"Authorization": f"token {token}"} if token else {}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, sent | headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Response(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return Response(refused.code, refused.headers, refused.read())

    @contextlib.contextmanager
    def listen(self, route: str, token: str | None = None, **options: Any) -> Iterator[Any]:
        """Open a websocket below ``nbmgpu/api/``."""
        token = self.token if token is None else token
        header = [f"Authorization: token {token}"] if token else []
        address = f"ws://127.0.0.1:{self.port}{BASE}nbmgpu/api/{route}"
        opened = websocket.create_connection(address, timeout=20, header=header, **options)
        try:
            yield opened
        finally:
            opened.close()
            opened.shutdown()  # close does nothing once the server has closed


@contextlib.contextmanager
def serving(
    folder: Path, *arguments: str, wrapper: Sequence[str] = (), **variables: str
) -> Iterator[Server]:
    """Start a server whose folders are all in ``folder``.

    Args:
        folder: its folders and its log.
        arguments: of its command line.
        wrapper: a command that gets the server's command as arguments.
        variables: environment variables.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token, runs, log = secrets.token_hex(16), folder / "runs", folder / "server.log"
    (folder / "root").mkdir(parents=True)
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_CONFIG_PATH": str(folder / "none"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_NO_CONFIG": "1",
        "NBMGPU_RUNS": str(runs),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")]),
    }
    environment |= variables
    command = [
        *wrapper, sys.executable, "-W", "error::RuntimeWarning", "-m", "jupyter_server",
        "--no-browser", "--allow-root", f"--port={port}", "--ServerApp.port_retries=0",
        f"--ServerApp.base_url={BASE}", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder / 'root'}",
        "--ServerApp.jpserver_extensions={'nbmgpu': True}", *arguments,
    ]  # fmt: skip
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=out, start_new_session=True
        )
    server = Server(port, token, runs, process, log)
    try:
        _wait_for(server)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def _wait_for(server: Server) -> None:
    for _ in range(300):
        if server.process.poll() is not None:
            break
        with contextlib.suppress(OSError):
            if server.request(f"{BASE}api").status == 200:
                return
        time.sleep(0.1)
    raise RuntimeError(server.log.read_text())


def until(condition: Any, seconds: float = 60) -> Any:
    """Wait until ``condition()`` returns a true value and return it; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{condition} did not come true within {seconds} s")
