"""Files that the cell writes: one file, written by rank 0.

All ranks run the cell, and would all write the same path.  So on the others

- ``torch.save``, ``safetensors`` and ``tokenizers`` write nothing; reading such a path
  back waits until rank 0 has written it;
- ``open(path, "w")`` and its kin write to a shadow of the path in the run's folder,
  which reading the path then finds: each rank sees its own writes;
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
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import session
from .shared import comes_from_rank_0

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
        self.shadows = shadows
        self.saves: dict[str, int] = {}
        self.arrived: set[str] = set()
        self.home = os.path.realpath(os.getcwd())
        self.others_own = [os.path.realpath(p) for p in _places_of_libraries()]
        self.open: Callable[..., Any] = builtins.open
        self.began = time.time()
        self.made: set[str] = set()
        self.originals: dict[tuple[Any, str], Any] = {}

    def install(self) -> None:
        """Put the tap in place, for the rest of this process."""
        torch.save = self._saving(torch.save, place=1, pickles=True)
        torch.load = self._loading(torch.load)
        self._install_for_rust()
        self._replace(os, "mkdir", self._making(os.mkdir))
        if self.rank:
            for module in (builtins, io):
                self._replace(module, "open", self._open)
            for module, name in ((os, "remove"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree")):
                self._replace(module, name, self._deleting(getattr(module, name)))
            for name in ("rename", "replace"):
                self._replace(os, name, self._renaming(getattr(os, name)))

    def _install_for_rust(self) -> None:
        """Stand before what is not written in Python, where all names for it come together."""
        try:
            safe: Any = importlib.import_module("safetensors.torch")
        except ImportError:
            return  # nothing else here comes without it
        safe.serialize_file = self._saving(safe.serialize_file, place=1)
        safe.load_file = self._loading(safe.load_file)
        try:
            tokenizers: Any = importlib.import_module("tokenizers")
        except ImportError:
            return
        tokenizers.Tokenizer.save = self._saving(tokenizers.Tokenizer.save, place=1)

    def _replace(self, owner: Any, name: str, by: Any) -> None:
        self.originals[owner, name] = getattr(owner, name)
        setattr(owner, name, by)

    def remove(self) -> None:
        """Let this process write again, and delete the shadows of its rank."""
        for (owner, name), original in self.originals.items():
            setattr(owner, name, original)
        self.originals.clear()
        shutil.rmtree(self.shadows, ignore_errors=True)

    def _saving(
        self, save: Callable[..., Any], place: int, pickles: bool = False
    ) -> Callable[..., Any]:
        """Write on rank 0 alone; what it ``pickles`` may have to be gathered by all."""

        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            names = ("f", "filename", "path")
            target = args[place] if len(args) > place else next(
                (kwargs[n] for n in names if n in kwargs), None
            )  # fmt: skip
            if not isinstance(target, str | os.PathLike):
                return save(*args, **kwargs)
            key = self._count(os.path.realpath(target))
            if self.rank:
                if pickles and session.current is not None:
                    session.current.strategy.attend(args[0] if args else kwargs.get("obj"))
                return None
            result = save(*args, **kwargs)
            _store().set(key, b"1")
            return result

        return saving

    def _loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
            if self.rank and isinstance(f, str | os.PathLike):
                self._wait_for_save(os.path.realpath(f))
            return load(f, *args, **kwargs)

        return loading

    def _wait_for_save(self, path: str) -> None:
        """Wait until rank 0 has saved ``path`` as often as the cell has here.

        Where rank 0 is through its cell, what it has saved is all there will be.
        """
        if path not in self.saves or not dist.is_initialized():
            return
        key = _key(path, self.saves[path])
        if key not in self.arrived:  # asked for once: a loader's workers inherit what is known
            comes_from_rank_0(key)
            self.arrived.add(key)

    def _count(self, path: str) -> str:
        self.saves[path] = self.saves.get(path, 0) + 1
        return _key(path, self.saves[path])

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike) and not _apart:
            path = os.path.realpath(file)
            shadow = self._shadow(path)
            if WRITING & set(mode):
                if self._belongs_to_cell(path):
                    self._begin_shadow(Path(path), shadow, mode)
                    file = shadow
            elif shadow.exists():
                file = shadow
            else:
                self._wait_for_save(path)
        return self.open(file, mode, *args, **kwargs)

    def _shadow(self, path: str) -> Path:
        return self.shadows / path.lstrip("/")

    def _making(self, mkdir: Callable[..., None]) -> Callable[..., None]:
        """Let a folder be there already if it is another rank that has just made it."""

        @functools.wraps(mkdir)
        def making(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
            if dir_fd is not None:
                mkdir(path, mode, dir_fd=dir_fd)
                return
            place = os.path.realpath(path)
            try:
                mkdir(path, mode)
            except FileExistsError:
                new = os.path.isdir(place) and os.stat(place).st_ctime >= self.began
                if place in self.made or not new:
                    raise
            self.made.add(place)

        return making

    def _deleting(self, delete: Callable[..., None]) -> Callable[..., None]:
        """Delete the rank's own shadow; what is shared is rank 0's to delete."""

        @functools.wraps(delete)
        def deleting(path: Any, *args: Any, **kwargs: Any) -> None:
            if _apart or kwargs.get("dir_fd") is not None or not self._is_cells(path):
                delete(path, *args, **kwargs)
                return
            place = os.path.realpath(path)
            self.made.discard(place)
            shadow = self._shadow(place)
            if shadow.is_dir():
                shutil.rmtree(shadow)
            elif shadow.exists():
                shadow.unlink()

        return deleting

    def _renaming(self, rename: Callable[..., None]) -> Callable[..., None]:
        """Rename the rank's own shadow; what is shared is rank 0's to rename."""

        @functools.wraps(rename)
        def renaming(src: Any, dst: Any, **kwargs: Any) -> None:
            if _apart or kwargs or not (self._is_cells(src) and self._is_cells(dst)):
                rename(src, dst, **kwargs)
                return
            old, new = (self._shadow(os.path.realpath(path)) for path in (src, dst))
            if old.exists():
                new.parent.mkdir(parents=True, exist_ok=True)
                rename(old, new)

        return renaming

    def _is_cells(self, path: Any) -> bool:
        named = isinstance(path, str | os.PathLike)
        return named and self._belongs_to_cell(os.path.realpath(path))

    def _begin_shadow(self, path: Path, shadow: Path, mode: str) -> None:
        if not path.parent.is_dir():
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


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _store() -> Any:
    return dist.distributed_c10d._get_default_store()


def _key(path: str, count: int) -> str:
    return f"nbmgpu/saved/{count}/{path}"
