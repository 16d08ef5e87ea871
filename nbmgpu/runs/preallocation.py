"""Reserves disk space for a file in advance, so that the last events fit on a full disk.

``fallocate`` with ``FALLOC_FL_KEEP_SIZE`` allocates blocks beyond a file's end, which readers do
not see (fallocate(2)). It exists on Linux only, and not on every file system.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

RESERVE = 1 << 16
"""Bytes beyond the end of a file that frequent events do not use."""

KEEP_SIZE = 0x01
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of an ``OSError``: there is no space, or the user's quota is used up."""


class ReservedSpace:
    """The blocks beyond the end of an append-only file."""

    def __init__(self, fd: int) -> None:
        """Reserve the first blocks for ``fd``, if possible."""
        self._fd = fd
        self._allocated = 0
        with suppress(OSError):  # the first write that needs more raises
            self.ensure(0)

    def ensure(self, nbytes: int) -> None:
        """Ensure that ``nbytes`` can be written without the reserve.

        Raises:
            OSError: the disk is full.
        """
        end = os.fstat(self._fd).st_size + nbytes
        if end + RESERVE <= self._allocated:
            return
        wanted = end + 2 * RESERVE
        if allocate(self._fd, wanted):
            self._allocated = wanted

    def release(self) -> None:
        """Free the unused blocks."""
        with suppress(OSError):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size)


def allocate(fd: int, end: int) -> bool:
    """Allocate blocks for the first ``end`` bytes of ``fd``; return whether that is supported.

    Raises:
        OSError: the disk, or the user's quota, is full.
    """
    if _fallocate is None:
        return False
    if _fallocate(fd, KEEP_SIZE, 0, end) == 0:
        return True
    if (number := ctypes.get_errno()) in DISK_FULL:
        raise OSError(number, os.strerror(number))
    return False


def require_space(folder: Path, nbytes: int = RESERVE) -> None:
    """Raise an error unless ``nbytes`` can be written into ``folder``.

    Raises:
        OSError: the disk is full or read-only, the user's quota is used up, or there is no folder.
    """
    path = folder / ".space"
    with path.open("wb") as file:
        try:
            if not allocate(file.fileno(), nbytes):
                file.write(b"\0")
        finally:
            path.unlink(missing_ok=True)  # another process may look at the same time


def disk_is_full(folder: Path) -> bool:
    """Return whether the smallest file does not fit into ``folder``."""
    try:
        require_space(folder)
    except OSError as error:
        return error.errno in DISK_FULL
    return False


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_fallocate = _find_fallocate()
