"""What was at the paths that a cell has written to, so that the cell can start again.

A rank records each path before it changes; the kernel restores them when all ranks have ended.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nbmgpu.system.ownership import require_own

FOLDER = "undo"
"""Name of the folder in the run folder."""

OBSTACLE = "obstacle"
"""Name of the file in it that says what a rank has done that cannot be undone."""

LARGEST = 64 << 20
"""Bytes that one process copies at most: more would hold up the cell."""


@dataclass(frozen=True)
class Entry:
    """What was at one path.

    Attributes:
        time: when it was recorded, in seconds since the epoch.
        path: absolute.
        backup: name of the copy of the file; empty if there was nothing at the path.
    """

    time: float
    path: str
    backup: str = ""


class UndoLog:
    """Records what is at a path before it changes; processes forked from this one do so, too."""

    def __init__(self, run_folder: Path) -> None:
        """Keep the log and the copies in ``run_folder``."""
        self._folder = run_folder / FOLDER
        self._recorded: set[str] = set()
        self._size = 0

    def record(self, path: str) -> bool:
        """Record what is at ``path``, an absolute one, unless it has been recorded before.

        Returns:
            Whether it can be restored: there is nothing, or a regular file that is not too large.
        """
        if path in self._recorded:
            return True
        try:
            self._folder.mkdir(exist_ok=True)
            backup = self._copy(path) if os.path.lexists(path) else ""
            self._append(Entry(time.time(), path, backup))
        except (OSError, ValueError):  # another file system, no space, no permission
            return False
        self._recorded.add(path)
        return True

    @property
    def obstacle(self) -> str:
        """What a rank of this run has done that cannot be undone, as a predicate; or empty."""
        try:
            return (self._folder / OBSTACLE).read_text()
        except OSError:
            return ""

    def add_obstacle(self, predicate: str) -> None:
        """Record that this rank has done something that cannot be undone."""
        with suppress(OSError):  # no space: others will see it, too
            self._folder.mkdir(exist_ok=True)
            (self._folder / OBSTACLE).write_text(predicate)

    def _copy(self, path: str) -> str:
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or self._size + status.st_size > LARGEST:
            raise ValueError(path)
        self._size += status.st_size
        name = f"{os.getpid()}-{len(self._recorded)}"
        shutil.copy2(path, self._folder / name)
        return name

    def _append(self, entry: Entry) -> None:
        with (self._folder / f"{os.getpid()}.jsonl").open("a") as log:
            log.write(f"{json.dumps(dataclasses.asdict(entry))}\n")


def undo(run_folder: Path) -> None:
    """Restore all recorded paths, each to what was there at first.

    Raises:
        OSError: a file cannot be restored.
        OwnershipError: another user may have written the log.
    """
    folder = run_folder / FOLDER
    if not folder.exists():
        return
    require_own(run_folder)
    lines = (line for log in folder.glob("*.jsonl") for line in log.read_text().splitlines())
    try:
        entries = sorted((Entry(**json.loads(line)) for line in lines), key=lambda each: each.time)
    except (ValueError, TypeError) as error:
        raise OSError(f"{folder} has a line that was not written to its end") from error
    for entry in reversed(entries):
        if entry.backup:
            shutil.copy2(folder / entry.backup, entry.path)
        elif os.path.isdir(entry.path) and not os.path.islink(entry.path):
            with suppress(OSError):  # not empty: others have written to it
                os.rmdir(entry.path)
        else:
            Path(entry.path).unlink(missing_ok=True)
