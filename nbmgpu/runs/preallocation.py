"""Room on the disk that a file has before it needs it, so that last words fit on a full one.

``fallocate`` with ``FALLOC_FL_KEEP_SIZE`` takes blocks beyond a file's end, which readers do not
see (fallocate(2); Linux alone, and not every file system: without it there is no reserve).
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress

RESERVE = 1 << 16
"""Bytes beyond the end of a file that ordinary writing leaves alone."""

KEEP_SIZE = 0x01
FULL = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """The blocks beyond the end of one file that is written to at its end."""

    def __init__(self, fd: int) -> None:
        """Take the first of them for ``fd``, if there are any."""
        self._fd = fd
        self._taken = 0
        with suppress(OSError):  # the first who needs more is told
            self.spare(0)

    def spare(self, nbytes: int) -> None:
        """See to it that ``nbytes`` can be written without the reserve.

        Raises:
            OSError: they cannot, the disk is full.
        """
        end = os.fstat(self._fd).st_size + nbytes
        if end + RESERVE <= self._taken:
            return
        wanted = end + 2 * RESERVE
        if take(self._fd, wanted):
            self._taken = wanted

    def release(self) -> None:
        """Give back what the file did not need."""
        with suppress(OSError):
            os.ftruncate(self._fd, os.fstat(self._fd).st_size)


def take(fd: int, end: int) -> bool:
    """Take blocks for the first ``end`` bytes of ``fd``; return whether its file system can.

    Raises:
        OSError: the disk, or the user's share of it, is full.
    """
    if _fallocate is None:
        return False
    if _fallocate(fd, KEEP_SIZE, 0, end) == 0:
        return True
    if (number := ctypes.get_errno()) in FULL:
        raise OSError(number, os.strerror(number))
    return False


def _found() -> Callable[[int, int, int, int], int] | None:
    function = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if function is not None:
        function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


_fallocate = _found()
