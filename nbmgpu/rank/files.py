"""Files that the cell writes: one file, written by rank 0.

All ranks run the cell, and would all write the same path.  So on the others

- ``torch.save`` and ``safetensors`` write nothing; reading such a path back waits
  until rank 0 has written it;
- ``open(path, "w")`` and its kin write to a shadow of the path in the run's folder,
  which reading the path then finds: each rank sees its own writes.

Caches and temporary files, which libraries write for themselves, are left alone.
"""

from __future__ import annotations

import builtins
import functools
import os
import shutil
import site
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WRITING = frozenset("wax+")


class FileTap:
    """Lets rank 0 alone write the cell's files."""

    def __init__(self, rank: int, shadows: Path) -> None:
        """Be on ``rank``; ``shadows`` is a folder for what the others write."""
        self.rank = rank
        self.shadows = shadows
        self.saves: dict[str, int] = {}
        self.home = os.path.realpath(os.getcwd())
        self.others_own = [os.path.realpath(p) for p in _places_of_libraries()]
        self.open: Callable[..., Any] = builtins.open

    def install(self) -> None:
        """Put the tap in place, for the rest of this process."""
        torch.save = self._saving(torch.save, place=1)
        torch.load = self._loading(torch.load)
        try:
            import safetensors.torch as safe
        except ImportError:
            pass
        else:
            safe.save_file = self._saving(safe.save_file, place=1)
            safe.load_file = self._loading(safe.load_file)
        if self.rank:
            builtins.open = self._open

    def remove(self) -> None:
        """Let this process write again, and delete the shadows of its rank."""
        builtins.open = self.open
        shutil.rmtree(self.shadows, ignore_errors=True)

    def _saving(self, save: Callable[..., Any], place: int) -> Callable[..., Any]:
        @functools.wraps(save)
        def saving(*args: Any, **kwargs: Any) -> Any:
            names = ("f", "filename")
            target = args[place] if len(args) > place else next(
                (kwargs[n] for n in names if n in kwargs), None
            )  # fmt: skip
            if not isinstance(target, str | os.PathLike):
                return save(*args, **kwargs)
            key = self._count(os.path.realpath(target))
            if self.rank:
                return None
            result = save(*args, **kwargs)
            _store().set(key, b"1")
            return result

        return saving

    def _loading(self, load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def loading(f: Any, *args: Any, **kwargs: Any) -> Any:
            if self.rank and isinstance(f, str | os.PathLike):
                path = os.path.realpath(f)
                if path in self.saves:
                    _store().wait([_key(path, self.saves[path])])
            return load(f, *args, **kwargs)

        return loading

    def _count(self, path: str) -> str:
        self.saves[path] = self.saves.get(path, 0) + 1
        return _key(path, self.saves[path])

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            path = os.path.realpath(file)
            shadow = self.shadows / path.lstrip("/")
            if WRITING & set(mode):
                if self._belongs_to_cell(path):
                    self._begin_shadow(Path(path), shadow, mode)
                    file = shadow
            elif shadow.exists():
                file = shadow
        return self.open(file, mode, *args, **kwargs)

    def _begin_shadow(self, path: Path, shadow: Path, mode: str) -> None:
        if not path.parent.is_dir():
            return  # open() shall fail as it would on one device
        shadow.parent.mkdir(parents=True, exist_ok=True)
        if not shadow.exists() and path.is_file() and ("a" in mode or "+" in mode):
            shutil.copyfile(path, shadow)

    def _belongs_to_cell(self, path: str) -> bool:
        if path.startswith(("/dev/", "/proc/", "/sys/")):
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
