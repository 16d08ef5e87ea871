"""Which folder a path is in, and which folders belong to libraries."""

from __future__ import annotations

import os
import site
import tempfile
from pathlib import PurePath


def cache_folders() -> list[str]:
    """Return folders of libraries' caches; torch's compiler names its own when it first runs."""
    variables = ("HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
    chosen = [os.environ.get(name) for name in ("XDG_CACHE_HOME", *variables)]
    folders = "~/.cache", "~/.triton", *filter(None, chosen)  # one that is empty would be "/"
    return [os.path.abspath(os.path.expanduser(folder)) for folder in folders]


def library_folders() -> list[str]:
    """Return folders in which libraries keep caches, code and temporary files."""
    packages = [*site.getsitepackages(), site.getusersitepackages()]
    return [tempfile.gettempdir(), *cache_folders(), *packages]


def is_in(path: str, folders: set[str]) -> bool:
    """Return whether ``path`` is one of ``folders`` or in one of them."""
    parts = (path, *map(str, PurePath(path).parents)) if folders else ()
    return any(part in folders for part in parts)


def is_within(path: str, folder: str) -> bool:
    """Return whether ``path`` is ``folder`` or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def resolve_parent(path: str | os.PathLike[str]) -> str:
    """Return the real path of ``path`` without following a link in its last part.

    That is what is deleted and renamed.
    """
    folder, name = os.path.split(os.fspath(path).rstrip("/"))
    if name in ("", ".", ".."):
        return os.path.realpath(path)
    return os.path.join(os.path.realpath(folder), name)
