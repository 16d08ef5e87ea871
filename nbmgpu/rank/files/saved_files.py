"""The files that a rank has saved, by path."""

from __future__ import annotations

import threading
from pathlib import PurePath

from nbmgpu.rank.store.rendezvous import Save


class SavedFiles:
    """The latest save of each path, safe to use from several threads.

    Attributes:
        written_here: paths that this rank has written itself, instead of rank 0.
    """

    def __init__(self) -> None:
        """Start without a file."""
        self.written_here: set[str] = set()
        self._lock = threading.Lock()
        self._saves: dict[str, Save] = {}
        self._folders: set[str] = set()

    def __bool__(self) -> bool:
        """Whether there is any save."""
        return bool(self._saves)

    def has(self, path: str) -> bool:
        """Return whether a file was saved at ``path``, or in the folder ``path``."""
        return path in self._saves or path in self._folders

    def replace(self, path: str, save: Save) -> Save | None:
        """Record a save of ``path``; return the previous one."""
        with self._lock:
            previous = self._saves.get(path)
            self._add(path, save)
        return previous

    def take(self, root: str) -> tuple[dict[str, Save], set[str]]:
        """Remove and return the saves at or in ``root``, and which of them this rank has written.

        The paths are relative to ``root``.
        """
        with self._lock:
            prefix = f"{root}/"
            paths = [path for path in self._saves if path == root or path.startswith(prefix)]
            saves = {path[len(root) :]: self._saves.pop(path) for path in paths}
            written_here = self.written_here.intersection(paths)
            self.written_here -= written_here
            self._folders.discard(root)
        return saves, {path[len(root) :] for path in written_here}

    def put(self, root: str, saves: dict[str, Save], written_here: set[str]) -> None:
        """Record saves that ``take`` has returned again, at or in ``root``."""
        with self._lock:
            for path, save in saves.items():
                self._add(root + path, save)
            self.written_here |= {root + path for path in written_here}

    def _add(self, path: str, save: Save) -> None:
        if path not in self._saves:
            self._folders.update(map(str, PurePath(path).parents))
        self._saves[path] = save
