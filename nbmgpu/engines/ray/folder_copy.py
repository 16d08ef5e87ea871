"""The run folder of this machine, kept in step with the copy on a node that does not see it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbmgpu.engines.multi_node.launch_file import LAUNCH_FILE
from nbmgpu.runs.stacks import request_path

from .bundle_sender import BundleSender
from .folder_on_node import APPENDED, Change

MAX_MODULES = 64 * 2**20
"""Most bytes of Python files beside the notebook that are sent."""

NOT_SENT = ("node_modules", "site-packages", "__pycache__")
"""Folders without modules of the notebook's own; so are those that begin with a dot."""

TOO_LARGE = (
    "The Python files in {folder} take more than {limit} MiB, and a node does not see them. Run "
    "the notebook from a folder of its own, or from one that all nodes share."
)

Call = Callable[..., Any]
"""Calls a method of the node's actor, by its name, and returns what it returns."""

PART = ".{}.part"
"""Name of a file of which a part is missing."""

FIRST_FILES = ("run.json", "cell.py", LAUNCH_FILE)


class NodeError(Exception):
    """Why a run cannot go on; the message is for the user."""


class FolderCopy:
    """The copy of a run folder on one node.

    Attributes:
        path: where it is there.
    """

    def __init__(
        self, folder: Path, cwd: str, call: Call, python: str, bundle: str, host: str
    ) -> None:
        """Create the copy; the bundle follows once it is complete.

        Args:
            folder: the run folder.
            cwd: the notebook's folder, whose modules the cell may import.
            call: calls the node's actor.
            python: see ``NodeActor.copy_folder``.
            bundle: path of the bundle on this machine.
            host: this machine, as the node reaches it.
        """
        self._folder = folder
        self._call = call
        self._request = b""
        files = {name: (folder / name).read_bytes() for name in FIRST_FILES} | {"bundle": b""}
        self.path: str = call("copy_folder", folder.name, files, modules_in(cwd), python)
        self._bundle = BundleSender(bundle)
        call("fetch_bundle", host, self._bundle.port, self._bundle.key)

    def send(self) -> None:
        """Send requests for stacks, which ranks read.

        Raises:
            NodeError: the bundle could not be sent.
        """
        if self._bundle.error:
            raise NodeError(f"The notebook's data could not be sent: {self._bundle.error}")
        path = request_path(self._folder)
        request = path.read_bytes() if path.exists() else b""
        if request != self._request:
            self._call("write", str(path.relative_to(self._folder)), 0, request)
            self._request = request

    def receive(self, changes: list[Change]) -> None:
        """Write what has changed in the copy."""
        for name, offset, content, complete in changes:
            path = self._folder / name
            grows = Path(name).parts[0] in APPENDED
            target = path if grows else path.with_name(PART.format(path.name))
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.seek(offset)
                file.write(content)
                file.truncate()
            if complete and not grows:
                target.replace(path)

    def close(self) -> None:
        """Send no more, and remove files of which a part is missing."""
        self._bundle.close()
        for path in self._folder.rglob(PART.format("*")):
            path.unlink(missing_ok=True)


@functools.cache
def modules_in(folder: str) -> dict[str, bytes]:
    """Return the Python files in ``folder``, by their paths in it.

    Raises:
        NodeError: they are too large to be sent.
    """
    found: dict[str, bytes] = {}
    size = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each[0] != "." and each not in NOT_SENT]
        for path in (Path(place, n) for n in names if n.endswith(".py") and n[0] != "."):
            with suppress(OSError):  # a link that leads nowhere
                size += path.stat().st_size
                if size > MAX_MODULES:
                    raise NodeError(TOO_LARGE.format(folder=folder, limit=MAX_MODULES >> 20))
                found[str(path.relative_to(folder))] = path.read_bytes()
    return found
