"""Keeps the reference from doing what others can see: it ends before, or fails.

Python's audit events show what Python code does, as for a cell that may start again.  Files that
compiled code writes are unknown to Python: Linux refuses them.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbmgpu.patches import PatchStack
from nbmgpu.rank.effects import FileChange, watch_effects
from nbmgpu.rank.files.atomic_writes import path_argument, with_path
from nbmgpu.rank.files.paths import is_in, library_folders
from nbmgpu.rank.files.saves import Saves
from nbmgpu.rank.files.writes import FilePatch
from nbmgpu.system.landlock import forbid_writes
from nbmgpu.system.worker_sockets import socket_folder

if TYPE_CHECKING:
    from pathlib import Path

    from nbmgpu.rank.shell import RankShell

ALSO_EFFECTS = frozenset({"os.exec", "os.spawn", "socket.bind"})
"""Audit events of what can be undone on the ranks, and must not happen beside them."""

CONTAINED = frozenset({
    "os.posix_spawn", "os.spawn", "os.system", "sqlite3.connect", "subprocess.Popen",
})  # fmt: skip
"""Those that may happen once Linux refuses writes, also of processes that this one starts."""

FOLDER_TIMEOUT = 0.5
"""Seconds within which rank 0 makes a folder that the reference has reached before it.  One that it
does not make, such as a folder named by the time, is the reference's own."""


class Isolation:
    """What keeps this process to itself; for its files it is one more rank, with own shadows.

    Attributes:
        files: the patch of file operations, which is not installed yet.
    """

    def __init__(self, run_folder: Path, number: int, end: Callable[[str], None]) -> None:
        """Prepare to call ``end`` before an effect.

        Args:
            run_folder: of the run.
            number: a rank's that the run does not have.
            end: ends this process, for a reason; in a worker of a loader, it does nothing.
        """
        self._folder = run_folder
        self._end = end
        self.files = FilePatch(number, run_folder)
        self.files.saves = _ShadowSaves(number, self.files)
        self.files.make_folder = self._make_folder
        self._own_folders: set[str] = set()
        self._is_contained = False

    def begin(self, shell: RankShell) -> None:
        """Watch this process from now on; ``shell`` runs no command."""

        def run(command: str, *_: Any, **__: Any) -> None:
            self._end(f"the cell has run !{command}")

        shell.system = shell.getoutput = run  # type: ignore[method-assign, assignment]
        watch_effects(self._folder, self._check_change, self._check_effect, ALSO_EFFECTS)

    def enforce(self, join_save: Callable[[Any], None]) -> None:
        """Let the cell write to shadows alone, once the notebook's objects are loaded.

        Afterwards this process cannot read the kernel's memory any more.
        """
        self.files.install(join_save)
        for listing in ("os.listdir", "os.scandir"):
            PatchStack().wrap(listing, self._wrap_listing)
        private = str(self._folder), "/dev", "/proc", socket_folder(), *library_folders()
        self._is_contained = forbid_writes(path for path in private if path)

    def _check_effect(self, event: str, predicate: str) -> None:
        """End before an effect that Linux does not contain."""
        if not (self._is_contained and event in CONTAINED):
            self._end(f"the cell {predicate}")

    def _check_change(self, change: FileChange) -> None:
        """End before a change of files, unless it is a folder that rank 0 has made as well."""
        is_made = change.event == "os.mkdir" and not change.is_relative
        if not (is_made and os.path.isdir(change.path)):  # else the call finds it, as on the ranks
            self._end(f"the cell {change.predicate}")

    def _make_folder(self, mkdir: Callable[..., None], path: Any, mode: int) -> None:
        """Make a folder of the cell as rank 0 does, or else among the shadows."""
        real = os.path.realpath(path)
        parent = os.path.dirname(real)
        is_own = is_in(parent, self._own_folders)
        is_possible = self.files.is_of_cell(real) and (is_own or os.path.isdir(parent))
        if not is_possible or (not is_own and _appears(real)):
            mkdir(path, mode)  # which finds what rank 0 has made, as on the ranks
        else:
            self.files.shadows.of(real).mkdir(mode, parents=True)
            self._own_folders.add(real)

    def _wrap_listing(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """List the files of an own folder, which are among the shadows."""

        @functools.wraps(plain)
        def listing(path: Any = ".") -> Any:
            if isinstance(path, str | os.PathLike) and is_in(
                real := os.path.realpath(path), self._own_folders
            ):
                path = str(self.files.shadows.of(real))
            return plain(path)

        return listing


def _appears(folder: str) -> bool:
    """Return whether rank 0 makes a folder, which may take a while."""
    deadline = time.monotonic() + FOLDER_TIMEOUT
    while not os.path.isdir(folder) and time.monotonic() < deadline:
        time.sleep(0.005)
    return os.path.isdir(folder)


class _ShadowSaves(Saves):
    """Lets libraries save to this process's own version of a file."""

    def __init__(self, number: int, files: FilePatch) -> None:
        super().__init__(number, lambda path: False, lambda path: None)
        self._files = files

    def wrap(
        self, save: Callable[..., Any], position: int, pickles: bool = False
    ) -> Callable[..., Any]:
        """Return a function that saves to shadows, and elsewhere to buffers alone."""

        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            given = path_argument(position, args, kwargs)
            if isinstance(given, str | os.PathLike):
                shadow = self._files.shadow_to_write(os.path.realpath(given))
                if shadow is not None:
                    args, kwargs = with_path(str(shadow), position, args, kwargs)
            return save(*args, **kwargs)

        return saving
