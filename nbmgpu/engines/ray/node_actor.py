"""The actor of a node: it starts the node launcher, and keeps a copy of the run folder in step.

Ray sends this module by value, as a node may have no nbmgpu: it imports nothing of it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

POLL = 0.02
"""Seconds between two looks at the files of the copy."""

CHUNK = 64 * 2**20
"""Most bytes of a file that travel at once."""

BUFFER = 4 * 2**20
"""Most bytes of the bundle that are received at once."""

APPENDED = ("events", "logs")
"""Folders of files that only grow."""

NOT_COPIED = ("run.json", "cell.py", "engine.json", "bundle", "stop", "sockets", "shadows")
"""What the head has written itself, or nobody reads."""

Change = tuple[str, int, bytes, bool]
"""A part of a file: its path, the offset, the content, and whether the file is complete now."""

REMOVE = 'exec 3<&0; (cat <&3; sleep 5; rm -rf "$0") >/dev/null 2>&1 &'
"""Removes a folder when its input ends, which is when this process does; ranks end meanwhile."""

MAGIC_BYTES = 8
"""A result, or the bundle, is complete once its first bytes are not zero; they are written last."""

CHALLENGE, SIZE, RECEIVED = 32, 8, b"\1"
"""Bytes of a challenge, of its answer and of a size; what a node replies that has the bundle."""

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
        self._process = subprocess.Popen(
            [python or sys.executable, "-m", module, folder, *arguments],
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT,
            env=_environment() | variables, start_new_session=True,
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
        if self._copy is not None:
            self._copy.remove()

    def _printed(self) -> str:
        size = self._output.seek(0, os.SEEK_END)
        at = max(size - 2000, 0)
        return os.pread(self._output.fileno(), size - at, at).decode(errors="replace").strip()


class FolderOnNode:
    """A copy of a run folder, which knows what has changed since it was sent.

    Attributes:
        folder: its path.
    """

    def __init__(self, name: str, files: dict[str, bytes]) -> None:
        """Create it in a temporary folder, with ``files``: content by path."""
        self._parent = tempfile.mkdtemp(prefix="nbmgpu-copy-")
        # Ray kills an actor whose driver has ended, and its child processes.
        self._remover = subprocess.Popen(
            ["sh", "-c", REMOVE, self._parent], stdin=subprocess.PIPE, start_new_session=True
        )
        self.folder = Path(self._parent) / name
        self._sent: dict[str, int] = {}
        self._versions: dict[str, tuple[int, int]] = {}
        for each in (self.folder, *(self.folder / name for name in APPENDED)):
            each.mkdir(mode=0o700)
        for path, content in files.items():
            self.write(path, 0, content)

    def adapt(
        self, record: dict[str, Any], modules: dict[str, bytes], search_path: list[str]
    ) -> None:
        """Write ``run.json`` with paths of this node.

        Args:
            record: its content.
            modules: files of the notebook's folder.
            search_path: of the interpreter.
        """
        cwd = Path(self._parent) / "notebook"
        cwd.mkdir()
        for path, content in modules.items():
            (cwd / path).parent.mkdir(parents=True, exist_ok=True)
            (cwd / path).write_bytes(content)
        results = [f"{self.folder}/result-{rank}" for rank in range(len(record["devices"]))]
        record["kernel"] |= {
            "cwd": str(cwd),
            "sys_path": [str(cwd), *search_path],
            "python": "",
        }
        record["storage"] = {"bundle": f"{self.folder}/bundle", "results": results}
        (self.folder / "run.json").write_text(json.dumps(record))

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Write ``content`` at ``offset`` of a file, created for this user alone."""
        target = self.folder / path
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.seek(offset)
            file.write(content)
        self._versions[path] = _version(target)  # it need not be sent back
        self._sent[path] = target.stat().st_size

    def receive_bundle(self, connection: socket.socket) -> None:
        """Write the bundle; its first bytes come last, as ranks wait for them.

        Raises:
            OSError: the head has closed the connection, or there is no space.
        """
        with (self.folder / "bundle").open("r+b", buffering=0) as file:
            left = int.from_bytes(_receive(connection, SIZE), "little") - MAGIC_BYTES
            first = _receive(connection, MAGIC_BYTES)
            file.seek(MAGIC_BYTES)
            buffer = memoryview(bytearray(BUFFER))
            while left:
                size = connection.recv_into(buffer[: min(left, BUFFER)])
                if not size:
                    raise OSError("the connection to the head has ended")
                file.write(buffer[:size])
                left -= size
            os.pwrite(file.fileno(), first, 0)
        connection.sendall(RECEIVED)

    def changes(self) -> list[Change]:
        """Return what has changed; events come last, as they tell of the other files."""
        events = [part for path in sorted(self.folder.glob("events/*")) for part in self._new(path)]
        others = [part for path in self.folder.glob("logs/*") for part in self._new(path)]
        for path in [*self.folder.iterdir(), *self.folder.glob("hang/*")]:
            others += self._changed(path)
        if all(complete for *_, complete in others):
            return [*others, *events]
        for name, _, content, _ in events:  # they may tell of a file of which a part is left
            self._sent[name] -= len(content)
        return others

    def _new(self, path: Path) -> list[Change]:
        """Return what was appended to a file."""
        name = str(path.relative_to(self.folder))
        sent = self._sent.get(name, 0)
        content = _read(path, sent)
        self._sent[name] = sent + len(content)
        return [(name, sent, content, True)] if content else []

    def _changed(self, path: Path) -> list[Change]:
        """Return the next part of a file that was written since it was sent."""
        name = str(path.relative_to(self.folder))
        if path.name in NOT_COPIED or path.name.startswith(".") or not path.is_file():
            return []
        version = _version(path)
        if self._versions.get(name) != version:
            if path.name.startswith("result-") and not _read(path, 0, MAGIC_BYTES).strip(b"\0"):
                return []
            self._versions[name], self._sent[name] = version, 0
        elif self._sent[name] == version[1]:
            return []
        sent = self._sent[name]
        content = _read(path, sent)
        self._sent[name] = sent + len(content)
        return [(name, sent, content, self._sent[name] >= version[1])]

    def remove(self) -> None:
        """Remove it."""
        shutil.rmtree(self._parent, ignore_errors=True)


def _prove(connection: socket.socket, key: bytes) -> None:
    """Prove that this process knows ``key``, and let the head do so.

    Raises:
        OSError: the other side is not the head.
    """
    own = os.urandom(CHALLENGE)
    challenge = _receive(connection, CHALLENGE)
    connection.sendall(own + hmac.digest(key, FROM_NODE + challenge, "sha256"))
    answer = _receive(connection, CHALLENGE)
    if not hmac.compare_digest(answer, hmac.digest(key, FROM_HEAD + own, "sha256")):
        raise OSError("who listens there is not the head of the run")
    connection.settimeout(None)  # the notebook may still write the bundle


def _receive(connection: socket.socket, size: int) -> bytes:
    content = connection.recv(size, socket.MSG_WAITALL)
    if len(content) < size:
        raise OSError("the connection to the head has ended")
    return content


def _version(path: Path) -> tuple[int, int]:
    """Return when a file was written last, and its size."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _read(path: Path, offset: int, size: int = CHUNK) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _environment() -> dict[str, str]:
    """Return the environment of this process without what Ray has set for its own processes."""
    own = {"OMP_NUM_THREADS", "PYTHONPATH", "PYTHONBREAKPOINT"}
    return {
        name: value
        for name, value in os.environ.items()
        if name not in own and not name.startswith("RAY_")
    }
