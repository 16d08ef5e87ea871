"""A bundle that another process has written, and that the ranks of a new run are to read."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import container
from .storage import Storage


@dataclass(frozen=True)
class StoredBundle:
    """A bundle in a file, which ranks do not rewrite.

    Attributes:
        path: the file; it is moved by ``move_to``.
    """

    path: str

    @property
    def is_complete(self) -> bool:
        """Whether it is there, and complete."""
        return container.is_complete(self.path)

    def move_to(self, storage: Storage, owner: str) -> None:
        """Let it be the content of ``storage``, for the run ``owner`` that has not started yet.

        Raises:
            OSError: the two are on different file systems.
        """
        container.set_owner(self.path, owner)
        os.replace(self.path, storage.path)

    def write(self, storage: Storage, owner: str = "") -> None:
        """Do nothing: it is there already."""
