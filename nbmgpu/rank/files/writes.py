"""Files that the cell writes: one file, written by rank 0.

All ranks run the cell, and would all write the same path.  So on the others

- ``torch.save``, ``safetensors`` and ``tokenizers`` write nothing, and return when rank 0
  has written (``saves``);
- ``open(path, "w")`` and its kin write to a shadow of the path in the run's folder,
  which reading the path, or asking whether it is there, then finds: each rank sees its own
  writes;
- what deletes or renames files does so with shadows alone, and a folder that another
  rank has made a moment earlier is no error.

Caches and temporary files, which libraries write for themselves, are left alone.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import io
import os
import shutil
import site
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Any

import torch

from .saves import Saves, place_of

WRITING = frozenset("wax+")

_plain_open = builtins.open
_apart = 0
"""How many functions are under way that keep files of their own, on every rank."""


@contextmanager
def apart() -> Iterator[None]:
    """Let a library write and move its own files, such as caches, wherever they are.

    ``open`` is Python's own meanwhile, on all ranks: datasets looks for a function's result
    by a hash of the function and of all that it calls.
    """
    global _apart
    _apart += 1
    ours = builtins.open, io.open
    builtins.open = io.open = _plain_open
    try:
        yield
    finally:
        builtins.open, io.open = ours
        _apart -= 1


class FileTap:
    """Lets rank 0 alone write the cell's files."""

    def __init__(self, rank: int, shadows: Path) -> None:
        """Be on ``rank``; ``shadows`` is a folder for what the others write."""
        self.rank = rank
        self.shadows = Path(os.path.realpath(shadows))
        self.saves = Saves(rank, self._is_temporary, self._forget)
        self.home = os.path.realpath(os.getcwd())
        self.others_own = [os.path.realpath(p) for p in _places_of_libraries()]
        self.open: Callable[..., Any] = builtins.open
        self.rmtree: Callable[..., Any] = shutil.rmtree
        self.unlink: Callable[..., Any] = os.unlink
        self.began = time.time()
        self.made: set[str] = set()
        self.gone: set[str] = set()
        self.temporary: set[str] = set()
        self.originals: dict[tuple[Any, str], Any] = {}

    def install(self) -> None:
        """Put the tap in place, for the rest of this process."""
        torch.save = self.saves.of(torch.save, place=1, pickles=True)
        self._install_for_rust()
        made: Any = tempfile
        self._replace(tempfile, "_mkstemp_inner", self._naming(made._mkstemp_inner))
        for module, name in ((os, "remove"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree")):
            self._replace(module, name, self._deleting(getattr(module, name)))
        for name in ("rename", "replace"):
            self._replace(os, name, self._renaming(getattr(os, name)))
        for name in ("symlink", "link"):
            self._replace(os, name, self._linking(getattr(os, name)))
        self._replace(os, "mkdir", self._making(os.mkdir))
        if self.rank:
            for module in (builtins, io):
                self._replace(module, "open", self._open)
            names = [name for name in ("chmod", "utime", "listxattr") if hasattr(os, name)]
            marking = [(name, self._marking(getattr(os, name))) for name in names]
            for name, by in (("stat", self._looking(os.stat)), *marking):
                for able in (os.supports_dir_fd, os.supports_follow_symlinks):
                    able.add(by)
                self._replace(os, name, by)

    def _install_for_rust(self) -> None:
        """Stand before what is not written in Python, where all names for it come together."""
        try:
            safe: Any = importlib.import_module("safetensors.torch")
        except ImportError:
            return  # nothing else here comes without it
        safe.serialize_file = self.saves.of(safe.serialize_file, place=1)
        try:
            tokenizers: Any = importlib.import_module("tokenizers")
        except ImportError:
            return
        tokenizers.Tokenizer.save = self.saves.of(tokenizers.Tokenizer.save, place=1)

    def _replace(self, owner: Any, name: str, by: Any) -> None:
        self.originals[owner, name] = getattr(owner, name)
        setattr(owner, name, by)

    def remove(self) -> None:
        """Let this process write again, and delete what it alone has written.

        That is the shadows of its rank, and temporary files that nobody is left to remove: their
        names come home from rank 0, and from no other.
        """
        for (owner, name), original in self.originals.items():
            setattr(owner, name, original)
        self.originals.clear()
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
        """Let what this rank has written be there, also before rank 0 has."""

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

        return looking

    def _marking(self, mark: Callable[..., Any]) -> Callable[..., Any]:
        """Set times and rights of the rank's own shadow: ``shutil.copy2`` does."""

        @functools.wraps(mark)
        def marking(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not _apart and kwargs.get("dir_fd") is None and self._is_cells(path):
                shadow = self._shadow(os.path.realpath(path))
                path = shadow if shadow.exists() else path
            return mark(path, *args, **kwargs)

        return marking

    def _making(self, mkdir: Callable[..., None]) -> Callable[..., None]:
        """Let a folder be there already if it is another rank that has just made it."""

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
                gone = _is_in(place, self.gone)  # and rank 0 has not come so far
                if not gone:
                    new = os.path.isdir(place) and os.stat(place).st_ctime >= self.began
                    if place in self.made or not new:
                        raise
            self.gone.discard(place)
            self.made.add(place)

        return making

    def _naming(self, make: Callable[..., tuple[int, str]]) -> Callable[..., tuple[int, str]]:
        """Note the names of temporary files, which each rank has for itself."""

        @functools.wraps(make)
        def naming(*args: Any, **kwargs: Any) -> tuple[int, str]:
            fd, name = make(*args, **kwargs)
            self.temporary.add(os.path.realpath(name))
            return fd, name

        return naming

    def _is_temporary(self, path: str) -> bool:
        """Tell whether ``path`` is in a folder, or of a name, that ``tempfile`` has made up."""
        return _is_in(path, self.temporary)

    def _is_own(self, path: str) -> bool:
        """Tell whether this rank has really written ``path``, for itself."""
        return path in self.saves.mine or self._is_temporary(path)

    def _deleting(self, delete: Callable[..., None]) -> Callable[..., None]:
        """Delete the rank's own shadow; what all have saved or made is rank 0's to delete."""

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
        """Rename the rank's own shadow; what is shared is rank 0's to rename."""

        @functools.wraps(rename)
        def renaming(src: Any, dst: Any, **kwargs: Any) -> None:
            named = all(isinstance(path, str | os.PathLike) for path in (src, dst))
            if _apart or kwargs or not named:
                rename(src, dst, **kwargs)
                return
            src = self._meant(src)
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
        """Make a link once: the ``latest`` of several checkpoints."""

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
        """Take the file itself from here on, or rank 0's, for what this rank has written there."""
        shadow = self._shadow(path)
        if shadow.is_dir():
            self.rmtree(shadow, ignore_errors=True)
        elif self.rank:
            with suppress(FileNotFoundError):
                self.unlink(shadow)

    def forget_written(self) -> None:
        """Take rank 0's files for what this rank has written: they may have been changed."""
        for folder, _, names in os.walk(self.shadows):
            for name in names:
                path = self._meant(os.path.join(folder, name))
                if os.path.isfile(path):
                    self._forget(path)

    def _meant(self, path: Any) -> Any:
        """Return what the cell means by ``path``, which may be the name of a shadow, as opened."""
        if not os.fspath(path).startswith(f"{self.shadows}/"):
            return path
        return "/" + os.path.relpath(path, self.shadows)

    def _is_cells(self, path: Any) -> bool:
        named = isinstance(path, str | os.PathLike)
        return named and self._belongs_to_cell(os.path.realpath(path))

    def _begin_shadow(self, path: Path, shadow: Path, mode: str) -> None:
        if not path.parent.is_dir() and str(path.parent) not in self.made:
            return  # open() shall fail as it would on one device
        shadow.parent.mkdir(parents=True, exist_ok=True)
        if not shadow.exists() and path.is_file() and ("a" in mode or "+" in mode):
            shutil.copyfile(path, shadow)

    def _belongs_to_cell(self, path: str) -> bool:
        if path.startswith(("/dev/", "/proc/", "/sys/")) or _within(path, str(self.shadows)):
            return False
        if _within(path, self.home):
            return True
        return not any(_within(path, place) for place in self.others_own)


def _places_of_libraries() -> list[str]:
    """Return folders in which libraries keep caches, code and temporary files."""
    cache = os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache"))
    variables = ("HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    chosen = [os.environ[name] for name in variables if name in os.environ]
    packages = [*site.getsitepackages(), site.getusersitepackages()]
    triton = os.path.expanduser("~/.triton")
    return [tempfile.gettempdir(), cache, triton, *chosen, *packages]


def _is_in(path: str, places: set[str]) -> bool:
    parts = (path, *map(str, PurePath(path).parents)) if places else ()
    return any(part in places for part in parts)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
