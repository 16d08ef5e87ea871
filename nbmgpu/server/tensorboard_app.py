"""The process that serves one folder by TensorBoard, on a Unix domain socket.

    python -m nbmgpu.server.tensorboard_app LOGDIR PATH_PREFIX SOCKET

TensorBoard has no login, so it gets no TCP port, which every user of the machine could reach: its
socket is in a folder that only this user enters.  The process ends when its standard input does,
which is a pipe of the Jupyter server, and after a time without requests.
"""

from __future__ import annotations

import importlib
import os
import select
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

READY = b"ready\n"
"""What the process writes as soon as it answers requests."""

IDLE = 30 * 60
"""Seconds without a request after which the process ends."""

INTERVAL = 30
"""Seconds between two looks at the clock."""


class UnixServer:
    """A ``TensorBoardServer`` on a socket."""

    def __init__(self, socket: str) -> None:
        """Serve on ``socket``, once TensorBoard calls this object with its application."""
        self.socket = socket
        self.last_request = time.monotonic()

    def __call__(self, app: Callable[..., Any], flags: Any) -> UnixServer:
        """Listen; TensorBoard makes its server by this call."""
        serving: Any = importlib.import_module("werkzeug.serving")

        def counted(environ: Any, start_response: Any) -> Any:
            self.last_request = time.monotonic()
            return app(environ, start_response)

        silent = {"log": lambda *message: None}
        handler = type("Handler", (serving.WSGIRequestHandler,), silent)
        address = f"unix://{self.socket}"
        self._server = serving.make_server(address, 0, counted, True, request_handler=handler)
        return self

    def serve_forever(self) -> None:
        """Answer requests."""
        self._server.serve_forever()

    def get_url(self) -> str:
        """Return an address, which TensorBoard only prints."""
        return f"unix://{self.socket}"


def main(folder: str, prefix: str, socket: str) -> None:
    """Serve ``folder`` below ``prefix``."""
    os.umask(0o077)
    default: Any = importlib.import_module("tensorboard.default")
    program: Any = importlib.import_module("tensorboard.program")
    server = UnixServer(socket)
    board = program.TensorBoard(plugins=default.get_plugins(), server_class=server)
    # The fast loader is a process of its own, which listens on a TCP port.
    flags = ["--logdir", folder, "--path_prefix", prefix, "--load_fast=false"]
    board.configure(argv=["tensorboard", *flags])
    board.launch()  # unlike main(), it writes no file with the folder's path for other users
    os.write(sys.stdout.fileno(), READY)
    while time.monotonic() - server.last_request < IDLE:
        if select.select([sys.stdin], [], [], INTERVAL)[0] and not os.read(0, 1):
            break


if __name__ == "__main__":
    main(*sys.argv[1:])  # after an exception, the server reads the log, and removes the folder
    shutil.rmtree(Path(sys.argv[3]).parent, ignore_errors=True)
    os._exit(0)  # threads of TensorBoard do not end
