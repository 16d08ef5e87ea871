"""Process hygiene on Linux: children that die with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, sig: signal.Signals) -> None:
    """Ask the kernel to send ``sig`` to this process when ``parent`` ends.

    ``parent`` is checked afterwards: it may have ended in between.  On systems other
    than Linux this does nothing; there the launcher's own watching has to do.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), sig)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that none is lost."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
