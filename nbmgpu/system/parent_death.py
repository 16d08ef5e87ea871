"""Processes that end with their parent, and orphans that get a new one (Linux only)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

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


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, so that none is lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
