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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from nbmgpu.patches import PatchStack

from .paths import is_in, is_within, library_folders
from .saves import Saves, place_of

Function = TypeVar("Function", bound=Callable[..., Any])

WRITING = frozenset("wax+")

_plain_open = builtins.open
_apart = 0
"""How many running functions write files of their own, on every rank."""


@contextmanager
def apart() -> Iterator[None]:
    """Let a library write and move its own files, such as caches, wherever they are.

    ``open`` is Python's own meanwhile, on all ranks: datasets looks up a function's cached result
    by a hash of the function and of everything that it calls.
    """
    global _apart
    _apart += 1
    try:
        with PatchStack() as patches:
            patches.replace("builtins.open", _plain_open)
            patches.replace("io.open", _plain_open)
            yield
    finally:
        _apart -= 1


class FilePatch:
    """Lets only rank 0 write the cell's files."""

    def __init__(self, rank: int, shadows: Path) -> None:
        """Patch the file operations of ``rank``; ``shadows`` is a folder for its own writes."""
        self.rank = rank
        self.shadows = Path(os.path.realpath(shadows))
        self.saves = Saves(rank, self._is_temporary, self._forget)
        self.working_folder = os.path.realpath(os.getcwd())
        self.library_folders = [os.path.realpath(p) for p in library_folders()]
        self.open: Callable[..., Any] = builtins.open
        self.rmtree: Callable[..., Any] = shutil.rmtree
        self.unlink: Callable[..., Any] = os.unlink
        self.began = time.time()
        self.made: set[str] = set()
        self.gone: set[str] = set()
        self.temporary: set[str] = set()
        self.patches = PatchStack()

    def install(self, join_save: Callable[[Any], None]) -> None:
        """Install the patches.

        Args:
            join_save: takes part in the gathers of rank 0 while that pickles a value.
        """
        self.saves.join_save = join_save
        wrap = self.patches.wrap
        wrap("torch.save", functools.partial(self.saves.wrap, place=1, pickles=True))
        self._install_for_rust()
        wrap("tempfile._mkstemp_inner", self._recording_name)
        for target in ("os.remove", "os.unlink", "os.rmdir", "shutil.rmtree"):
            wrap(target, self._deleting)
        for target in ("os.rename", "os.replace"):
            wrap(target, self._renaming)
        for target in ("os.symlink", "os.link"):
            wrap(target, self._linking)
        wrap("os.mkdir", self._making)
        if self.rank:
            for target in ("builtins.open", "io.open"):
                self.patches.replace(target, self._open)
            wrap("os.stat", self._looking)
            for name in ("chmod", "utime", *(["listxattr"] if hasattr(os, "listxattr") else [])):
                wrap(f"os.{name}", self._marking)

    def _install_for_rust(self) -> None:
        """Wrap functions of libraries in Rust at the one Python name that all calls go through."""
        save = functools.partial(self.saves.wrap, place=1)
        try:
            importlib.import_module("safetensors.torch")
        except ImportError:
            return  # every library that saves through Rust depends on it
        self.patches.wrap("safetensors.torch.serialize_file", save)
        try:
            importlib.import_module("tokenizers")
        except ImportError:
            return
        self.patches.wrap("tokenizers.Tokenizer.save", save)

    def remove(self) -> None:
        """Remove the patches, and delete the files that only this rank has written.

        These are the rank's shadows, and its temporary files, which the notebook cannot remove:
        it gets the names of rank 0's alone.
        """
        self.patches.remove()
        shutil.rmtree(self.shadows, ignore_errors=True)
        for place in self.temporary if self.rank else ():
            if os.path.isdir(place):
                shutil.rmtree(place, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(place)

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike) and not _apart:
            path = os.path.realpath(file)
            shadow = self._shadow(path)
            if path in self.saves.aside:
                pass
            elif WRITING & set(mode):
                if self._belongs_to_cell(path) and not self._is_temporary(path):
                    self._begin_shadow(Path(path), shadow, mode)
                    file = shadow
            elif shadow.exists():
                file = shadow
        return self.open(file, mode, *args, **kwargs)

    def _shadow(self, path: str) -> Path:
        return self.shadows / path.lstrip("/")

    def _looking(self, stat: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        """Find a file that this rank has written, also before rank 0 has written it."""

        @functools.wraps(stat)
        def looking(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
            try:
                return stat(path, *args, **kwargs)
            except FileNotFoundError:
                if not isinstance(path, str | os.PathLike) or kwargs.get("dir_fd") is not None:
                    raise
                shadow = os.path.join(self.shadows, os.path.realpath(path).lstrip("/"))
                with suppress(OSError):
                    return stat(shadow)
                raise

        return _as_capable(looking)

    def _marking(self, mark: Callable[..., Any]) -> Callable[..., Any]:
        """Set times and permissions of the rank's own shadow, as ``shutil.copy2`` does."""

        @functools.wraps(mark)
        def marking(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not _apart and kwargs.get("dir_fd") is None and self._is_cells(path):
                shadow = self._shadow(os.path.realpath(path))
                path = shadow if shadow.exists() else path
            return mark(path, *args, **kwargs)

        return _as_capable(marking)

    def _making(self, mkdir: Callable[..., None]) -> Callable[..., None]:
        """Ignore that a folder exists if another rank has just created it."""

        @functools.wraps(mkdir)
        def making(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None:
                mkdir(path, mode, dir_fd=dir_fd)
                return
            place = os.path.realpath(path)
            if sys._getframe(1).f_globals.get("__name__") == "tempfile":
                mkdir(path, mode)
                self.temporary.add(place)
                return
            try:
                mkdir(path, mode)
            except FileExistsError:
                gone = is_in(place, self.gone)  # rank 0 has not deleted it yet
                if not gone:
                    new = os.path.isdir(place) and os.stat(place).st_ctime >= self.began
                    if place in self.made or not new:
                        raise
            self.gone.discard(place)
            self.made.add(place)

        return making

    def _recording_name(self, make: Callable[..., Any]) -> Callable[..., tuple[int, str]]:
        """Record the names of temporary files, which differ between ranks."""

        @functools.wraps(make)
        def recording(*args: Any, **kwargs: Any) -> tuple[int, str]:
            fd, name = make(*args, **kwargs)
            self.temporary.add(os.path.realpath(name))
            return fd, name

        return recording

    def _is_temporary(self, path: str) -> bool:
        """Return whether ``tempfile`` has made ``path`` or a folder that contains it."""
        return is_in(path, self.temporary)

    def _is_own(self, path: str) -> bool:
        """Return whether this rank has written the file ``path`` itself, not a shadow of it."""
        return path in self.saves.mine or self._is_temporary(path)

    def _deleting(self, delete: Callable[..., None]) -> Callable[..., None]:
        """Delete the rank's own shadow; rank 0 deletes what all ranks have saved or created."""

        @functools.wraps(delete)
        def deleting(path: Any, *args: Any, **kwargs: Any) -> None:
            named = isinstance(path, str | os.PathLike)
            if _apart or kwargs.get("dir_fd") is not None or not named:
                delete(path, *args, **kwargs)
                return
            place = place_of(path)
            common = place in self.made or self._belongs_to_cell(place)
            whole = functools.partial(delete, path, *args, **kwargs)
            if self.saves.has(place):
                self.saves.delete(whole, place)
            elif (
                delete is self.rmtree and common and self.saves.is_here and not self._is_own(place)
            ):
                self.saves.clear(whole, place)
            elif self.rank == 0 or not common or self._is_own(place):
                delete(path, *args, **kwargs)
                return
            self.made.discard(place)
            if self.rank:
                self.gone.add(place)
            self._forget(place)

        return deleting

    def _renaming(self, rename: Callable[..., None]) -> Callable[..., None]:
        """Rename the rank's own shadow; rank 0 renames files that all ranks share."""

        @functools.wraps(rename)
        def renaming(src: Any, dst: Any, **kwargs: Any) -> None:
            named = all(isinstance(path, str | os.PathLike) for path in (src, dst))
            if _apart or kwargs or not named:
                rename(src, dst, **kwargs)
                return
            src = self._path_of_shadow(src)
            saved = self.saves.has(src)
            own = not saved and self._is_own(place_of(src))
            if saved:
                self.saves.move(rename, src, dst)
            if self.rank and self._is_cells(src) and self._is_cells(dst) and not own:
                self._rename_shadow(rename, src, dst)
            elif not saved:
                rename(src, dst)

        return renaming

    def _rename_shadow(self, rename: Callable[..., None], src: Any, dst: Any) -> None:
        old, new = (self._shadow(place_of(path)) for path in (src, dst))
        if old.exists():
            new.parent.mkdir(parents=True, exist_ok=True)
            rename(old, new)
        else:
            self._forget(place_of(dst))

    def _linking(self, link: Callable[..., None]) -> Callable[..., None]:
        """Create a link once, such as to the latest of several checkpoints."""

        @functools.wraps(link)
        def linking(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            plain = functools.partial(link, src, dst, *args, **kwargs)
            relative = any(name.endswith("dir_fd") for name in kwargs)
            if _apart or relative or not isinstance(dst, str | os.PathLike):
                plain()
                return
            place = place_of(dst)
            if self._belongs_to_cell(place) and not self._is_own(place) and self.saves.is_here:
                self.saves.link(plain, place)
            else:
                plain()

        return linking

    def _forget(self, path: str) -> None:
        """Delete the shadow of ``path``, so that the rank reads rank 0's file from now on."""
        shadow = self._shadow(path)
        if shadow.is_dir():
            self.rmtree(shadow, ignore_errors=True)
        elif self.rank:
            with suppress(FileNotFoundError):
                self.unlink(shadow)

    def forget_written(self) -> None:
        """Delete shadows of files that rank 0 has written: these may have changed since."""
        for folder, _, names in os.walk(self.shadows):
            for name in names:
                path = self._path_of_shadow(os.path.join(folder, name))
                if os.path.isfile(path):
                    self._forget(path)

    def _path_of_shadow(self, path: Any) -> Any:
        """Return the path whose shadow ``path`` is (an open file has its name), or ``path``."""
        if not os.fspath(path).startswith(f"{self.shadows}/"):
            return path
        return "/" + os.path.relpath(path, self.shadows)

    def _is_cells(self, path: Any) -> bool:
        named = isinstance(path, str | os.PathLike)
        return named and self._belongs_to_cell(os.path.realpath(path))

    def _begin_shadow(self, path: Path, shadow: Path, mode: str) -> None:
        if not path.parent.is_dir() and str(path.parent) not in self.made:
            return  # open() fails as on one device
        shadow.parent.mkdir(parents=True, exist_ok=True)
        if not shadow.exists() and path.is_file() and ("a" in mode or "+" in mode):
            shutil.copyfile(path, shadow)

    def _belongs_to_cell(self, path: str) -> bool:
        if path.startswith(("/dev/", "/proc/", "/sys/")) or is_within(path, str(self.shadows)):
            return False
        if is_within(path, self.working_folder):
            return True
        return not any(is_within(path, folder) for folder in self.library_folders)


def _as_capable(function: Function) -> Function:
    """Declare that ``function`` takes the arguments of the function in ``os`` that it replaces."""
    for capable in (os.supports_dir_fd, os.supports_follow_symlinks):
        capable.add(function)
    return function
