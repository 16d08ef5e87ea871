"""Finds and validates run folders: real folders of this user, below the root of all runs."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from nbmgpu.runs.folder import runs_root
from nbmgpu.runs.run import Run

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]{1,16}")
"""The ids that ``nbmgpu.runs.folder.new_run_id`` creates; none has a meaning in a path."""


class NoSuchRunError(LookupError):
    """There is no run of this name that this server may serve."""


def run_ids() -> list[str]:
    """Return all names that are valid run ids, newest first.

    Raises:
        OSError: The folder of all runs cannot be read; FileNotFoundError if it does not exist yet.
    """
    with os.scandir(runs_root()) as entries:
        return sorted((e.name for e in entries if RUN_ID.fullmatch(e.name)), reverse=True)


def run_folder(name: str) -> Path:
    """Return the folder of the run ``name``.

    Raises:
        NoSuchRunError: It does not exist, is a symbolic link, or belongs to another user.
    """
    if not RUN_ID.fullmatch(name):
        raise NoSuchRunError(f"{name[:80]!r} is not a run id")
    folder = runs_root() / name
    for part in (folder, folder / "events", folder / "logs"):
        try:
            found = part.lstat()
        except OSError:
            raise NoSuchRunError(f"There is no run {name}; it may have been deleted") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise NoSuchRunError(f"The folder of run {name} is a link or belongs to another user")
    return folder


def open_run(name: str, ranks: int | None = None) -> Run:
    """Open the run ``name``; no events are read yet. For ``ranks`` see ``Run``.

    Raises:
        NoSuchRunError: It does not exist, or its folder is not a valid run.
    """
    folder = run_folder(name)
    try:
        return Run(folder, ranks)
    except FileNotFoundError:
        raise NoSuchRunError(f"Run {name} is being created or deleted") from None
    except (OSError, ValueError, TypeError) as error:
        raise NoSuchRunError(f"The folder of run {name} cannot be read: {error}") from None


def own_file(folder: Path, path: Path) -> Path:
    """Return ``path`` if it is a regular file inside ``folder``.

    Raises:
        NoSuchRunError: It is a symbolic link, or in a folder that is one.
        FileNotFoundError: It does not exist.
    """
    if not stat.S_ISREG(path.lstat().st_mode) or path.resolve().parent != path.parent.resolve():
        raise NoSuchRunError(f"{path.name} of run {folder.name} is a link")
    return path
