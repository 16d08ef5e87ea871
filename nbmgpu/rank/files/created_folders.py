"""The folders that the cell has created and deleted on one rank."""

from __future__ import annotations

import os
import time

from .paths import is_in


class CreatedFolders:
    """Decides whether a folder that exists already is an error for the cell."""

    def __init__(self) -> None:
        """Consider folders that appear from now on as possibly another rank's."""
        self._start = time.time()
        self._created: set[str] = set()
        self._deleted: set[str] = set()

    def __contains__(self, path: str) -> bool:
        """Whether the cell has created ``path``."""
        return path in self._created

    def add(self, path: str) -> None:
        """Record that the cell has created ``path``."""
        self._deleted.discard(path)
        self._created.add(path)

    def remove(self, path: str, is_pending: bool) -> None:
        """Record that the cell has deleted ``path``.

        Args:
            path: a file or folder.
            is_pending: whether rank 0 may not have deleted it yet.
        """
        self._created.discard(path)
        if is_pending:
            self._deleted.add(path)

    def may_exist(self, path: str) -> bool:
        """Return whether ``path`` exists only because of another rank.

        Either rank 0 has not deleted it yet, or another rank has created it a moment before.
        """
        if is_in(path, self._deleted):
            return True
        is_new = os.path.isdir(path) and os.stat(path).st_ctime >= self._start
        return is_new and path not in self._created
