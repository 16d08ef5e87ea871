"""Processes that end with their parent, and orphans that get a new one (Linux only)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, sig: signal.Signals) -> None:
    """Let the system send ``sig`` to this process when its parent ends.

    On systems other than Linux this does nothing; there the launcher's polling has to suffice.  The
    signal is sent when the parent *thread* that forked this process ends.

    Args:
        parent: pid of the parent; if it has ended already, the signal is sent at once.
        sig: the signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), sig)


def exit_with_parent(parent: int) -> None:
    """Let this process exit at once when its parent has ended, in the midst of an import as well.

    The parent *thread* may end before the parent does: the system then sends SIGHUP as well, and
    this process goes on.  Processes forked from this one call ``outlive_grandparent``.  On systems
    other than Linux this checks once; there this process has to poll.

    Args:
        parent: pid of the parent, as the parent knows it: it may have ended before this one could
            ask for it.
    """
    global _before

    def check(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)

    if sys.platform == "linux":
        _before = signal.signal(signal.SIGHUP, check)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGHUP), 0, 0, 0)
    check()


def outlive_grandparent() -> None:
    """Undo ``exit_with_parent`` in a process forked from the one that has called it."""
    if sys.platform == "linux":  # the system does not pass its part on to children
        signal.signal(signal.SIGHUP, signal.SIG_DFL if _before is None else _before)


_before: Any = None
"""What SIGHUP did before ``exit_with_parent``."""


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that none is lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
