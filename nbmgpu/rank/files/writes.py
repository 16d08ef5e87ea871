"""Patches of file operations: rank 0 writes the cell's files.

All ranks run the cell, and would all write the same paths.  On the other ranks

- ``torch.save``, ``safetensors`` and ``tokenizers`` write nothing, and return when rank 0
  has written (``saves``);
- ``open(path, "w")`` and similar calls write to a shadow of the path in the run's folder.
  Reading the path, or checking whether it exists, then finds the shadow: each rank sees its own
  writes;
- functions that delete or rename files act on shadows alone, and a folder that another rank has
  created a moment before is not an error.

Caches and temporary files, which libraries write for themselves, are not affected.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from nbmgpu.patches import PatchStack
from nbmgpu.runs.folder import SHADOWS

from .created_folders import CreatedFolders
from .paths import is_in, is_within, library_folders, resolve_parent
from .saved_rows import noting_rows
from .saves import Saves
from .shadows import ShadowFiles

Function = TypeVar("Function", bound=Callable[..., Any])

WRITING = frozenset("wax+")

_plain_open = builtins.open
_unpatched_depth = 0
"""Number of ``unpatched`` contexts that are open."""


@contextmanager
def unpatched() -> Iterator[None]:
    """Let a library write and move its own files, such as caches, on every rank.

    ``open`` is Python's own meanwhile: datasets looks up a function's cached result
    by a hash of the function and of everything that it calls.
    """
    global _unpatched_depth
    _unpatched_depth += 1
    try:
        with PatchStack() as patches:
            patches.replace("builtins.open", _plain_open)
            patches.replace("io.open", _plain_open)
            yield
    finally:
        _unpatched_depth -= 1


class FilePatch:
    """Lets only rank 0 write the cell's files.

    Attributes:
        rank: of this process.
        saves: the files that libraries save.
        shadows: this rank's versions of other files.
        folders: the folders that the cell has created.
        make_folder: called with Python's own ``mkdir``, a path and a mode.
        temporary: paths of temporary files and folders.
    """

    def __init__(self, rank: int, folder: Path) -> None:
        """Patch the file operations of ``rank``; ``folder`` is the run's, which has the shadows."""
        self.rank = rank
        self.shadows = ShadowFiles(rank, folder / SHADOWS / f"rank-{rank}")
        self.saves = Saves(rank, self._is_temporary, self.shadows.delete)
        self.folders = CreatedFolders()
        self.make_folder: Callable[..., None] = lambda mkdir, path, mode: mkdir(path, mode)
        self.temporary: set[str] = set()
        self._working_folder = os.path.realpath(os.getcwd())
        self._library_folders = [os.path.realpath(p) for p in library_folders()]
        self._run_folder = os.path.realpath(folder)
        self._original_open: Callable[..., Any] = builtins.open
        self._patches = PatchStack()

    def install(self, join_save: Callable[[Any], None]) -> None:
        """Install the patches.

        Args:
            join_save: takes part in the gathers of rank 0 while that pickles a value.
        """
        self.saves.join_save = join_save
        wrap = self._patches.wrap
        wrap("torch.save", functools.partial(self.saves.wrap, position=1, pickles=True))
        wrap("torch.save", noting_rows)
        self._install_for_rust()
        wrap("tempfile._mkstemp_inner", self._wrap_mkstemp)
        for target in ("os.remove", "os.unlink", "os.rmdir"):
            wrap(target, self._wrap_delete)
        wrap("shutil.rmtree", functools.partial(self._wrap_delete, is_tree=True))
        for target in ("os.rename", "os.replace"):
            wrap(target, self._wrap_rename)
        for target in ("os.symlink", "os.link"):
            wrap(target, self._wrap_link)
        wrap("os.mkdir", self._wrap_mkdir)
        if self.rank:
            for target in ("builtins.open", "io.open"):
                self._patches.replace(target, self._open)
            wrap("os.stat", self._wrap_stat)
            for name in ("chmod", "utime", *(["listxattr"] if hasattr(os, "listxattr") else [])):
                wrap(f"os.{name}", self._wrap_metadata)

    def _install_for_rust(self) -> None:
        """Wrap functions of libraries in Rust at the one Python name that all calls go through."""
        save = functools.partial(self.saves.wrap, position=1)
        try:
            importlib.import_module("safetensors.torch")
        except ImportError:
            return  # every library that saves through Rust depends on it
        self._patches.wrap("safetensors.torch.serialize_file", save)
        try:
            importlib.import_module("tokenizers")
        except ImportError:
            return
        self._patches.wrap("tokenizers.Tokenizer.save", save)

    def remove(self) -> None:
        """Remove the patches, and delete the files that only this rank has written.

        These are the rank's shadows, and its temporary files, which the notebook cannot remove:
        it gets the names of rank 0's alone.
        """
        self._patches.remove()
        shutil.rmtree(self.shadows.folder, ignore_errors=True)
        for path in self.temporary if self.rank else ():
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(path)

    def shadow_to_write(self, path: str, mode: str = "w") -> Path | None:
        """Return where this rank writes instead of the absolute ``path``; None if it writes there.

        Without the folder of ``path``, its shadow has none: writing fails as on one device.
        """
        if not self.is_of_cell(path) or self._is_temporary(path):
            return None
        folder = os.path.dirname(path)
        if os.path.isdir(folder) or folder in self.folders:
            self.shadows.create(path, mode)
        return self.shadows.of(path)

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike) and not _unpatched_depth:
            path = os.path.realpath(file)
            shadow = self.shadows.of(path)
            if path in self.saves.writer.temporary_paths:
                pass
            elif WRITING & set(mode):
                file = self.shadow_to_write(path, mode) or file
            elif shadow.exists():
                file = shadow
        return self._original_open(file, mode, *args, **kwargs)

    def _wrap_stat(self, stat: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        """Find a file that this rank has written, also before rank 0 has written it."""

        @functools.wraps(stat)
        def find(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
            try:
                return stat(path, *args, **kwargs)
            except FileNotFoundError:
                if not isinstance(path, str | os.PathLike) or kwargs.get("dir_fd") is not None:
                    raise
                shadow = os.path.join(self.shadows.folder, os.path.realpath(path).lstrip("/"))
                with suppress(OSError):
                    return stat(shadow)
                raise

        return _with_capabilities(find)

    def _wrap_metadata(self, mark: Callable[..., Any]) -> Callable[..., Any]:
        """Set times and permissions of the rank's own shadow, as ``shutil.copy2`` does."""

        @functools.wraps(mark)
        def change(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not _unpatched_depth and kwargs.get("dir_fd") is None and self._is_cell_path(path):
                shadow = self.shadows.of(os.path.realpath(path))
                path = shadow if shadow.exists() else path
            return mark(path, *args, **kwargs)

        return _with_capabilities(change)

    def _wrap_mkdir(self, mkdir: Callable[..., None]) -> Callable[..., None]:
        """Ignore that a folder exists if another rank has just created it."""

        @functools.wraps(mkdir)
        def make(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None:
                mkdir(path, mode, dir_fd=dir_fd)
                return
            real = os.path.realpath(path)
            if sys._getframe(1).f_globals.get("__name__") == "tempfile":
                mkdir(path, mode)
                self.temporary.add(real)
                return
            try:
                self.make_folder(mkdir, path, mode)
            except FileExistsError:
                if not self.folders.may_exist(real):
                    raise
            self.folders.add(real)

        return make

    def _wrap_mkstemp(self, make: Callable[..., Any]) -> Callable[..., tuple[int, str]]:
        """Record the names of temporary files, which differ between ranks."""

        @functools.wraps(make)
        def make_and_record(*args: Any, **kwargs: Any) -> tuple[int, str]:
            fd, name = make(*args, **kwargs)
            self.temporary.add(os.path.realpath(name))
            return fd, name

        return make_and_record

    def _is_temporary(self, path: str) -> bool:
        """Return whether ``tempfile`` has made ``path`` or a folder that contains it."""
        return is_in(path, self.temporary)

    def _is_private(self, path: str) -> bool:
        """Return whether this rank has written the file ``path`` itself, not a shadow of it."""
        return path in self.saves.files.written_here or self._is_temporary(path)

    def _wrap_delete(
        self, delete: Callable[..., None], is_tree: bool = False
    ) -> Callable[..., None]:
        """Delete the rank's own shadow; rank 0 deletes what all ranks have saved or created."""

        @functools.wraps(delete)
        def delete_once(path: Any, *args: Any, **kwargs: Any) -> None:
            is_path = isinstance(path, str | os.PathLike)
            if _unpatched_depth or kwargs.get("dir_fd") is not None or not is_path:
                delete(path, *args, **kwargs)
                return
            real = resolve_parent(path)
            is_common = real in self.folders or self.is_of_cell(real)
            call = functools.partial(delete, path, *args, **kwargs)
            if self.saves.has(real):
                self.saves.delete(call, real)
            elif is_tree and is_common and self.saves.is_active and not self._is_private(real):
                self.saves.clear(call, real)
            elif self.rank == 0 or not is_common or self._is_private(real):
                call()
                return
            self.folders.remove(real, is_pending=self.rank > 0)
            self.shadows.delete(real)

        return delete_once

    def _wrap_rename(self, rename: Callable[..., None]) -> Callable[..., None]:
        """Rename the rank's own shadow; rank 0 renames files that all ranks share."""

        @functools.wraps(rename)
        def rename_once(src: Any, dst: Any, **kwargs: Any) -> None:
            are_paths = all(isinstance(path, str | os.PathLike) for path in (src, dst))
            if _unpatched_depth or kwargs or not are_paths:
                rename(src, dst, **kwargs)
                return
            src = self.shadows.original(src)
            is_saved = self.saves.has(src)
            is_private = not is_saved and self._is_private(resolve_parent(src))
            if is_saved:
                self.saves.move(rename, src, dst)
            is_of_cell = self._is_cell_path(src) and self._is_cell_path(dst)
            if self.rank and is_of_cell and not is_private:
                self.shadows.rename(rename, src, dst)
            elif not is_saved:
                rename(src, dst)

        return rename_once

    def _wrap_link(self, link: Callable[..., None]) -> Callable[..., None]:
        """Create a link once, such as to the latest of several checkpoints."""

        @functools.wraps(link)
        def link_once(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            call = functools.partial(link, src, dst, *args, **kwargs)
            relative = any(name.endswith("dir_fd") for name in kwargs)
            if _unpatched_depth or relative or not isinstance(dst, str | os.PathLike):
                call()
                return
            real = resolve_parent(dst)
            if self.is_of_cell(real) and not self._is_private(real) and self.saves.is_active:
                self.saves.link(call, real)
            else:
                call()

        return link_once

    def _is_cell_path(self, path: Any) -> bool:
        is_path = isinstance(path, str | os.PathLike)
        return is_path and self.is_of_cell(os.path.realpath(path))

    def is_of_cell(self, path: str) -> bool:
        """Return whether the absolute ``path`` is the cell's, and no library's or the run's."""
        is_of_run = is_within(path, self._run_folder)  # shadows and checkpoints
        if is_of_run or path.startswith(("/dev/", "/proc/", "/sys/")):
            return False
        if is_within(path, self._working_folder):
            return True
        return not any(is_within(path, folder) for folder in self._library_folders)


def _with_capabilities(function: Function) -> Function:
    """Declare that ``function`` takes the arguments of the function in ``os`` that it replaces."""
    for capable in (os.supports_dir_fd, os.supports_follow_symlinks):
        capable.add(function)
    return function
