"""Which folders are runs that this server may show: real ones, of this user, under the root."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from nbmgpu.runs.run import Run, runs_root

RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-z]{1,16}")
"""What ``nbmgpu.runs.run.new_run_id`` makes, and nothing that means something to a file system."""


class NoSuchRunError(LookupError):
    """There is no run of this name that this server may show."""


def run_ids() -> list[str]:
    """Return the names that may be runs, the newest first.

    Raises:
        OSError: the folder of all runs cannot be read; FileNotFoundError if there is none yet.
    """
    with os.scandir(runs_root()) as entries:
        return sorted((e.name for e in entries if RUN_ID.fullmatch(e.name)), reverse=True)


def run_folder(name: str) -> Path:
    """Return the folder of the run ``name``.

    Raises:
        NoSuchRunError: there is none, or it is a link, or somebody else's.
    """
    if not RUN_ID.fullmatch(name):
        raise NoSuchRunError(f"{name[:80]!r} is not the name of a run")
    folder = runs_root() / name
    for part in (folder, folder / "events", folder / "logs"):
        try:
            found = part.lstat()
        except OSError:
            raise NoSuchRunError(f"There is no run {name}; it may have been deleted") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise NoSuchRunError(f"The folder of run {name} is a link or belongs to somebody else")
    return folder


def open_run(name: str, ranks: bool = True) -> Run:
    """Return the run ``name``, with nothing read of it yet but what was asked; see ``Run``.

    Raises:
        NoSuchRunError: there is none, or its folder cannot be read as a run.
    """
    folder = run_folder(name)
    try:
        return Run(folder, ranks)
    except FileNotFoundError:
        raise NoSuchRunError(f"Run {name} is only being made, or being deleted") from None
    except (OSError, ValueError, TypeError) as error:
        raise NoSuchRunError(f"The folder of run {name} cannot be read: {error}") from None


def own_file(folder: Path, path: Path) -> Path:
    """Return ``path`` if it is a real file inside ``folder``.

    Raises:
        NoSuchRunError: it is a link, or leads out.
        FileNotFoundError: there is no such file.
    """
    if not stat.S_ISREG(path.lstat().st_mode) or path.resolve().parent != path.parent.resolve():
        raise NoSuchRunError(f"{path.name} of run {folder.name} is a link")
    return path
