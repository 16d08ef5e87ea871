"""The folder of a node's sockets, which others on the node remove if its owner cannot.

A launcher that is killed leaves its folder.  The head of the run removes it in the end, if it is on
the same machine, Ray's actor of the node, and each launcher.  The lock tells that it is abandoned:
the system gives it back when the launcher and its ranks, which inherit it, have ended, also in
containers with pids of their own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "nbmgpu-node-"

NEW = ".nbmgpu-new-node-"
"""Begins the names of folders that their owners have not locked yet."""

MIN_AGE = 60.0
"""Seconds after which such a folder is abandoned, too."""


@contextmanager
def socket_folder() -> Iterator[str]:
    """Yield the path of a new folder, which is removed in the end; remove abandoned ones."""
    remove_abandoned()
    folder = tempfile.mkdtemp(prefix=NEW)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = str(Path(folder).with_name(Path(folder).name.replace(NEW, PREFIX)))
        os.rename(folder, locked)
        folder = locked
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)
        remove_abandoned()


def remove_abandoned() -> None:
    """Remove folders of this user whose owners have ended."""
    temporary, now = Path(tempfile.gettempdir()), time.time()
    for prefix, before in ((PREFIX, now), (NEW, now - MIN_AGE)):
        for folder in temporary.glob(f"{prefix}*"):
            with suppress(OSError):  # another process removes it, or its owner is alive
                _remove_abandoned(folder, before)


def _remove_abandoned(folder: Path, before: float) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        is_own = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == stat.S_IRWXU
        if is_own and found.st_mtime <= before:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)
