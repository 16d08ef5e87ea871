"""What the folder of a run takes on the disk, and whether a known size still holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class FolderSize:
    """The size of a run's folder.

    Attributes:
        nbytes: what its files take on the disk, links not followed.
        times: when its folders and event files were modified, by path.
    """

    nbytes: int
    times: dict[str, int]

    def is_current(self) -> bool:
        """Return whether the folder still has this size, without a look at each file.

        Folders tell of new and removed files. Other files grow only while the run emits events.
        """
        try:
            return all(os.lstat(path).st_mtime_ns == then for path, then in self.times.items())
        except OSError:  # removed
            return False


def measure(folder: Path) -> FolderSize:
    """Return the size of a run's folder."""
    total, events = 0, str(folder / "events")
    times = _times([str(folder)])
    for parent, folders, names in os.walk(folder):
        # Before they are read: what is added meanwhile counts as a change.
        times |= _times([os.path.join(parent, name) for name in folders])
        for name in names:
            path = os.path.join(parent, name)
            try:
                found = os.lstat(path)
            except OSError:  # removed meanwhile
                continue
            total += found.st_blocks * 512
            if parent == events:
                times[path] = found.st_mtime_ns
    return FolderSize(total, times)


def _times(paths: list[str]) -> dict[str, int]:
    try:
        return {path: os.lstat(path).st_mtime_ns for path in paths}
    except OSError:  # one was removed meanwhile, which its parent tells
        return {}
