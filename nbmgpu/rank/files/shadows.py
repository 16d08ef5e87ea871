"""Shadows: a rank's own versions of files that only rank 0 writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from .paths import resolve_parent


class ShadowFiles:
    """The shadows of one rank, which are in a folder of the run.

    Attributes:
        folder: the folder; a shadow's path in it is the absolute path of its original.
    """

    def __init__(self, rank: int, folder: Path) -> None:
        """Keep the shadows of ``rank`` in ``folder``."""
        self.folder = Path(os.path.realpath(folder))
        self._rank = rank
        self._rmtree: Callable[..., Any] = shutil.rmtree  # before they are patched
        self._unlink: Callable[..., Any] = os.unlink

    def of(self, path: str) -> Path:
        """Return the shadow of the absolute ``path``; it need not exist."""
        return self.folder / path.lstrip("/")

    def original(self, path: Any) -> Any:
        """Return the path whose shadow ``path`` is (an open file has its name), or ``path``."""
        if not os.fspath(path).startswith(f"{self.folder}/"):
            return path
        return "/" + os.path.relpath(path, self.folder)

    def create(self, path: str, mode: str) -> None:
        """Prepare the shadow of ``path`` to be opened with ``mode``; copy what that keeps."""
        shadow = self.of(path)
        shadow.parent.mkdir(parents=True, exist_ok=True)
        if not shadow.exists() and os.path.isfile(path) and ("a" in mode or "+" in mode):
            shutil.copyfile(path, shadow)

    def rename(self, rename: Callable[..., None], src: Any, dst: Any) -> None:
        """Rename the shadow of ``src`` by ``rename``; without one, ``dst`` has none either."""
        old, new = (self.of(resolve_parent(path)) for path in (src, dst))
        if old.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            rename(old, new)
        else:
            self.delete(resolve_parent(dst))

    def delete(self, path: str) -> None:
        """Delete the shadow of ``path``, so that the rank reads rank 0's file from now on."""
        shadow = self.of(path)
        if shadow.is_dir():
            self._rmtree(shadow, ignore_errors=True)
        elif self._rank:
            with suppress(FileNotFoundError):
                self._unlink(shadow)

    def delete_written(self) -> None:
        """Delete shadows of files that rank 0 has written: these may have changed since."""
        for folder, _, names in os.walk(self.folder):
            for name in names:
                path = self.original(os.path.join(folder, name))
                if os.path.isfile(path):
                    self.delete(path)
