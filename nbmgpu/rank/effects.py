"""Watches what a cell does that others can see: changes of files, connections, processes.

Python's audit events (https://docs.python.org/3/library/audit_events.html) tell.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nbmgpu.system.worker_sockets import socket_folder

from .files.paths import cache_folders, is_within

if TYPE_CHECKING:
    from pathlib import Path

CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
}
"""Audit events of changes of the file system: which arguments are paths, and which the descriptors
of folders that these are relative to (-1 for none)."""

EFFECTS = frozenset({
    "os.posix_spawn", "os.system", "socket.connect", "sqlite3.connect", "subprocess.Popen",
})  # fmt: skip
"""Audit events of what others can see."""

READERS = {"uname", "lscpu", "nvidia-smi"}
"""Programs that only tell about the machine; ``platform.platform()`` calls ``uname``."""

TEMPORARY = "tmp", "pymp-", "torchinductor_", "nbmgpu-"
"""How names of temporary files of Python, torch and nbmgpu begin."""

IN_MEMORY = "", ":memory:"
"""Databases of SQLite that are no file."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class FileChange:
    """A change of the file system that is about to happen.

    Attributes:
        event: the audit event.
        path: what changes, as the cell has given it.
        is_relative: whether the path is relative to a folder that is unknown.
        predicate: what the cell does, in words.
    """

    event: str
    path: str
    is_relative: bool
    predicate: str


def watch_effects(
    run_folder: Path,
    on_change: Callable[[FileChange], None],
    on_effect: Callable[[str, str], None],
    also: frozenset[str] = frozenset(),
) -> None:
    """Call ``on_change`` and ``on_effect`` before what this process does, from now on.

    Files of Python, caches and temporary files do not count, as the cell does not name them.

    Args:
        run_folder: whose files are not the cell's.
        on_change: gets each change of a file or folder.
        on_effect: gets the audit event of what the cell does otherwise, and a predicate for it.
        also: audit events that count as effects, besides ``EFFECTS``.
    """
    effects = EFFECTS | also
    folders = run_folder, "/dev", "/proc", sys.prefix, socket_folder()
    temporary = os.path.join(os.path.realpath(tempfile.gettempdir()), "")
    private = (
        *(os.path.join(os.path.realpath(path), "") for path in folders if path),
        *(f"{temporary}{prefix}" for prefix in TEMPORARY),
    )

    def is_of_cell(path: Any) -> bool:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str | os.PathLike):
            return not isinstance(path, int)  # a file that is open already
        path = os.path.abspath(path)
        return not (path.startswith(private) or any(is_within(path, f) for f in cache_folders()))

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITING and is_of_cell(path):
                on_change(FileChange(event, os.fsdecode(path), False, f"has written to {path}"))
        elif event in CHANGES:
            for index, folder_index in CHANGES[event]:
                path, is_relative = args[index], False
                if folder_index is not None and args[folder_index] != -1:
                    folder = _folder_of(args[folder_index])
                    path, is_relative = os.path.join(folder, os.fsdecode(path)), not folder
                if is_of_cell(path):
                    what = f"has called {event}({path!r})"
                    on_change(FileChange(event, os.fsdecode(path), is_relative, what))
        elif event in effects:
            # Workers of a loader hand over tensors through sockets that are files.
            what = args[1] if event.startswith("socket.") else args[0]
            if event == "sqlite3.connect":
                is_unseen = what in IN_MEMORY
            else:
                is_unseen = what in READERS or _is_any_port(what)
            if not is_unseen and is_of_cell(what):
                on_effect(event, f"has called {event}({what!r})")

    sys.addaudithook(audit)


def _folder_of(descriptor: int) -> str:
    """Return the path of an open folder; empty where the system does not tell."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def _is_any_port(address: Any) -> bool:
    """Whether ``address`` is one with a port that the system chooses, which nobody waits for."""
    return isinstance(address, tuple) and len(address) > 1 and address[1] == 0
