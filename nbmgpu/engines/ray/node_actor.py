"""The actor of a node: it starts the node launcher, and keeps a copy of the run folder in step.

Ray sends this module by value, as a node may have no nbmgpu: it imports nothing of it but
``folder_on_node``, which is sent likewise.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from .folder_on_node import Change, FolderOnNode, receive

POLL = 0.02
"""Seconds between two looks at the files of the copy."""

REMOVE_SOCKETS = """
from nbmgpu.engines.multi_node.socket_folder import remove_abandoned
remove_abandoned()
"""
"""Removes what a node launcher leaves that was killed."""

CHALLENGE = 32
"""Bytes of a challenge, and of its answer."""

FROM_NODE, FROM_HEAD = b"node", b"head"
"""What comes before a challenge, so that nobody can send back an answer as his own."""

CONNECT_TIMEOUT = 30.0
"""Seconds to connect to the head, and for its answer."""


def sees(file: str, folder: str) -> bool:
    """Return whether the node that this runs on has a file and a folder."""
    return os.path.isfile(file) and os.path.isdir(folder)


class NodeActor:
    """Runs the node launcher of one node."""

    def __init__(self) -> None:
        """Prepare for ``start``."""
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._copy: FolderOnNode | None = None
        self._problem: Exception | None = None
        self._clean_up: list[str] = []
        self._variables: dict[str, str] = {}

    def describe(self, folder: str, digest: str, cwd: str) -> tuple[str, bool]:
        """Return the name of this node, and whether it sees the run folder and ``cwd``.

        Args:
            folder: the run folder.
            digest: SHA-256 of its ``engine.json``, which has a random key.
            cwd: the notebook's folder.
        """
        try:
            content = (Path(folder) / "engine.json").read_bytes()
        except OSError:
            content = b""
        same = hashlib.sha256(content).hexdigest() == digest
        return socket.gethostname(), same and os.path.isdir(cwd)

    def check_python(self, python: str, code: str, variables: dict[str, str]) -> str:
        """Return what ``code`` prints in ``python`` if it fails there, else nothing.

        Raises:
            OSError: there is no such interpreter.
        """
        asked = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False, timeout=60,
            env=_environment() | variables,
        )  # fmt: skip
        return f"{asked.stdout}{asked.stderr}".strip() if asked.returncode else ""

    def copy_folder(
        self, name: str, files: dict[str, bytes], modules: dict[str, bytes], python: str
    ) -> str:
        """Create a copy of the run folder, for this user alone, and return its path.

        Args:
            name: its name.
            files: content by path.  In ``run.json``, paths of the notebook's machine are replaced.
            modules: files of the notebook's folder, likewise; ranks run in a folder with these.
            python: the interpreter whose module search path ranks get; empty for this one.
        """
        self._copy = FolderOnNode(name, files)
        record = json.loads(files["run.json"])
        code = "import sys, json; print(json.dumps(sys.path[1:]))"
        found = subprocess.check_output([python or sys.executable, "-c", code], env=_environment())
        self._copy.adapt(record, modules, json.loads(found))
        return str(self._copy.folder)

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Write into a file of the copy."""
        assert self._copy is not None
        self._copy.write(path, offset, content)

    def fetch_bundle(self, host: str, port: int, key: bytes) -> None:
        """Receive the bundle from the head, in a thread; ``poll`` raises what goes wrong."""

        def fetch() -> None:
            assert self._copy is not None
            try:
                with socket.create_connection((host, port), CONNECT_TIMEOUT) as connection:
                    _prove(connection, key)
                    self._copy.receive_bundle(connection)
            except Exception as error:  # as soon as possible, in a call of the head
                self._problem = error

        threading.Thread(target=fetch, daemon=True).start()

    def start(
        self, folder: str, python: str, arguments: list[str], variables: dict[str, str]
    ) -> None:
        """Start the node launcher.

        Args:
            folder: the run folder, as this node sees it.
            python: the interpreter; empty for this one.
            arguments: of the node launcher, besides ``folder``.
            variables: environment variables for it.
        """
        module = "nbmgpu.engines.multi_node.node_launcher"
        self._variables = _environment() | variables
        self._clean_up = [python or sys.executable, "-c", REMOVE_SOCKETS]
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", module, folder, *arguments],
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
            env=self._variables, start_new_session=True,
        )  # fmt: skip

    def poll(self, seconds: float) -> tuple[int | None, str, list[Change]]:
        """Wait until something happens, for up to ``seconds``.

        Raises:
            OSError: the bundle has not been received.

        Returns:
            The exit code of the node launcher; None as long as it runs, or more is to come.  What
            it has printed last.  Parts of files of the copy that are new or have changed.
        """
        assert self._process is not None
        deadline = time.monotonic() + seconds
        while True:
            if self._problem is not None:
                raise OSError(f"the notebook's data has not arrived: {self._problem}")
            code = self._process.poll()
            # After the code: what was written before the end is among them.
            changes = self._copy.changes() if self._copy is not None else []
            if changes or code is not None or time.monotonic() > deadline:
                return None if changes else code, self._printed(), changes
            time.sleep(POLL)

    def end(self) -> None:
        """End the node launcher, and remove the copy."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)  # the system ends its ranks
            self._process.wait()
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(self._clean_up, env=self._variables, timeout=10, check=False)
        if self._copy is not None:
            self._copy.remove()

    def _printed(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        at = max(size - 2000, 0)
        return os.pread(self._output.fileno(), size - at, at).decode(errors="replace").strip()


def _prove(connection: socket.socket, key: bytes) -> None:
    """Prove that this process knows ``key``, and let the head do so.

    Raises:
        OSError: the other side is not the head.
    """
    own = os.urandom(CHALLENGE)
    challenge = receive(connection, CHALLENGE)
    connection.sendall(own + hmac.digest(key, FROM_NODE + challenge, "sha256"))
    answer = receive(connection, CHALLENGE)
    if not hmac.compare_digest(answer, hmac.digest(key, FROM_HEAD + own, "sha256")):
        raise OSError("who listens there is not the head of the run")
    connection.settimeout(None)  # the notebook may still write the bundle


def _environment() -> dict[str, str]:
    """Return the environment of this process without what Ray has set for its own processes."""
    own = {"OMP_NUM_THREADS", "PYTHONPATH", "PYTHONBREAKPOINT"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in own and not name.startswith("RAY_")
    }
