"""Writes files under a temporary name and renames them when they are complete."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

PATH_ARGUMENTS = ("f", "filename", "path")
"""Names of the path argument of functions that save."""


def audit_write(path: str) -> None:
    """Raise the audit event of Python's ``open``, for compiled code that opens a file itself."""
    sys.audit("open", path, "wb", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def path_argument(position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a function that saves has been given as its path; None if nothing."""
    given = args[position] if len(args) > position else None
    return given or next((kwargs[name] for name in PATH_ARGUMENTS if name in kwargs), None)


def with_path(
    path: str, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a function that saves, with another path."""
    if len(args) > position:
        return (*args[:position], path, *args[position + 1 :]), kwargs
    return args, kwargs | {name: path for name in PATH_ARGUMENTS if name in kwargs}


class AtomicWriter:
    """Replaces files in one step: another rank may read or write the path at the same time.

    Attributes:
        temporary_paths: the names under which files are being written.
    """

    def __init__(self) -> None:
        """Use the functions of ``os`` as they are before they are patched."""
        self.temporary_paths: set[str] = set()
        self._rename, self._unlink = os.replace, os.unlink

    def write(
        self,
        path: str,
        save: Callable[..., Any],
        position: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call ``save`` with a temporary path, and rename that to ``path``.

        Args:
            path: the final path.
            save: a function that saves.
            position: position of its path argument.
            args, kwargs: its arguments.
        """
        temporary = f"{path}.{os.getpid()}-{threading.get_ident()}"
        args, kwargs = with_path(temporary, position, args, kwargs)
        self.temporary_paths.add(temporary)
        audit_write(temporary)
        try:
            result = save(*args, **kwargs)
            self._rename(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                self._unlink(temporary)
            raise
        finally:
            self.temporary_paths.discard(temporary)
        return result
