"""The folder of a node's sockets, which the next launcher on the node removes if its owner cannot.

A launcher that is killed leaves its folder.  Its lock tells: the system gives it back when the
launcher and its ranks, which inherit it, have ended, also in containers with pids of their own.
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

MIN_AGE = 60.0
"""Seconds for which a folder is left alone: its owner may not have locked it yet."""


@contextmanager
def socket_folder() -> Iterator[str]:
    """Yield the path of a new folder, which is removed in the end; remove abandoned ones."""
    remove_abandoned(time.time() - MIN_AGE)
    folder = tempfile.mkdtemp(prefix=PREFIX)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(before: float) -> None:
    """Remove folders of this user whose owners have ended.

    Args:
        before: seconds since the epoch; folders that were changed later stay.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another launcher removes it, or its owner is alive
            _remove_abandoned(folder, before)


def _remove_abandoned(folder: Path, before: float) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        is_own = found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == stat.S_IRWXU
        if is_own and found.st_mtime < before:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
    finally:
        os.close(descriptor)
