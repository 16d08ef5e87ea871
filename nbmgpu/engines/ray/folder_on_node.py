"""The copy of a run folder on a node that does not see it.

Ray sends this module by value, like ``node_actor``: it imports nothing of nbmgpu.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

CHUNK = 64 * 2**20
"""Most bytes of a file that travel at once."""

BUFFER, PIPE = 4 * 2**20, 2**20
"""Most bytes of the bundle that are received at once, and by a pipe."""

F_SETPIPE_SZ = 1031
"""Of Linux: sets the size of a pipe."""

NOT_SPLICED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
"""What the system answers where it cannot move bytes between two files."""

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

SIZE, RECEIVED = 8, b"\1"
"""Bytes of a size; what a node replies that has the bundle."""


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
            left = int.from_bytes(receive(connection, SIZE), "little") - MAGIC_BYTES
            first = receive(connection, MAGIC_BYTES)
            file.seek(MAGIC_BYTES)
            _receive_into(file, connection, left)
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


def receive(connection: socket.socket, size: int) -> bytes:
    """Return ``size`` bytes.

    Raises:
        OSError: the other side has closed the connection.
    """
    content = connection.recv(size, socket.MSG_WAITALL)
    if len(content) < size:
        raise OSError("the connection to the head has ended")
    return content


def _receive_into(file: io.FileIO, connection: socket.socket, left: int) -> None:
    """Write ``left`` bytes that arrive to ``file``.

    Linux moves them there through a pipe, which takes one copy less than to read and write them.
    """
    if hasattr(os, "splice"):
        left = _splice(file, connection, left)
    buffer = memoryview(bytearray(BUFFER if left else 0))
    while left:
        size = connection.recv_into(buffer[: min(left, BUFFER)])
        _write_all(file, buffer[: _required(size)])
        left -= size


def _splice(file: io.FileIO, connection: socket.socket, left: int) -> int:
    """Move ``left`` bytes; return how many the system does not move from such a connection."""
    reader, writer = os.pipe()
    try:
        with suppress(OSError):  # it is above the limit of this user
            fcntl.fcntl(writer, F_SETPIPE_SZ, PIPE)
        while left:
            try:
                arrived = os.splice(connection.fileno(), writer, min(left, PIPE))
            except OSError as error:
                if error.errno not in NOT_SPLICED:
                    raise
                return left
            left -= _required(arrived)
            while arrived:
                try:
                    arrived -= os.splice(reader, file.fileno(), arrived)
                except OSError as error:  # a file system that cannot do it
                    if error.errno not in NOT_SPLICED:
                        raise
                    content = os.read(reader, arrived)
                    _write_all(file, content)
                    arrived -= len(content)
        return 0
    finally:
        os.close(reader)
        os.close(writer)


def _write_all(file: io.FileIO, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


def _required(arrived: int) -> int:
    if not arrived:
        raise OSError("the connection to the head has ended")
    return arrived


def _version(path: Path) -> tuple[int, int]:
    """Return when a file was written last, and its size."""
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _read(path: Path, offset: int, size: int = CHUNK) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)
