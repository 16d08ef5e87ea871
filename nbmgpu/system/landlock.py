"""Takes a process's right to change files and to connect, by Linux's Landlock.

See https://docs.kernel.org/userspace-api/landlock.html: it needs no privileges, holds for all code
of the process, compiled code as well, and for its children, and cannot be undone.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, which are the same on all architectures."""

VERSION, PATH_BENEATH, NO_NEW_PRIVILEGES = 1, 1, 38
"""A flag of the first call, the type of a rule, and the option of prctl(2) that comes before."""

WRITE_FILE, REMOVE_AND_MAKE, REFER, TRUNCATE = 1 << 1, 0x1FF << 4, 1 << 13, 1 << 14
"""Rights to files: to write one; to remove a file or folder and make one of any kind; to move one
between folders (since version 2); to truncate one (since version 3)."""

TCP = 0b11
"""The rights to bind and to connect TCP sockets (since version 4)."""


def supported_version() -> int:
    """Return the version of Landlock that the kernel has; 0 if none."""
    if sys.platform != "linux":
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), VERSION)))


def forbid_writes(except_in: Iterable[str | Path]) -> bool:
    """Let this thread, and what it starts, change files only below some folders, without TCP.

    Args:
        except_in: the folders; those that do not exist are ignored.

    Returns:
        Whether the kernel supports it; otherwise nothing has changed.
    """
    version = supported_version()
    if version < 1:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    writes = WRITE_FILE | REMOVE_AND_MAKE
    writes |= REFER if version >= 2 else 0
    writes |= TRUNCATE if version >= 3 else 0
    handled = struct.pack("QQ", writes, TCP) if version >= 4 else struct.pack("Q", writes)
    ruleset = libc.syscall(CREATE_RULESET, handled, ctypes.c_size_t(len(handled)), 0)
    if ruleset < 0:
        return False
    try:
        for folder in except_in:
            with suppress(OSError):
                _allow(libc, ruleset, folder, writes)
        is_allowed = libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
        return is_allowed and bool(libc.syscall(RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, folder: str | Path, rights: int) -> None:
    """Add a rule that gives ``rights`` below ``folder``."""
    opened = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights, opened), 0)
    finally:
        os.close(opened)
