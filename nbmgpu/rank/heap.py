"""Memory that a step has freed stays with its rank: the next step takes as much again.

glibc gives freed memory at the end of the heap back to the system once it is twice the largest
block that was ever freed, which a backward pass frees many times over.  The system has to clear
each page before it gives it out again: on a small convolutional net that was a third of a step
(measured: 54 ms and 33 ms, 5,000 page faults and 10).  ``mallopt(3)`` has the parameters, and
PyTorch's tuning guide recommends allocators that keep memory for the same reason.
"""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

KEPT = 1 << 30
"""Free bytes at the end of the heap from which on they are given back."""

LARGEST = 32 << 20
"""Bytes from which on a block is mapped by itself, and given back when freed: glibc's maximum."""

OWN_WORD = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
"""Variables by which somebody has decided this already."""


def keep_freed_memory() -> None:
    """Let the heap of this process keep what is freed, unless its environment says how."""
    decided = any(name in os.environ for name in OWN_WORD)
    if sys.platform != "linux" or decided or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc alone has it
        mallopt(M_MMAP_THRESHOLD, LARGEST)
        mallopt(M_TRIM_THRESHOLD, KEPT)
