"""Keeps freed memory in the heap of a rank, since the next step allocates as much again.

glibc returns freed memory at the end of the heap to the system once it exceeds twice the largest
block that was ever freed, which a backward pass frees many times over.  The system clears each
page before it returns it again: on a small convolutional net that was a third of a step
(measured: 54 ms and 33 ms, 5,000 page faults and 10).  ``mallopt(3)`` documents the parameters,
and PyTorch's tuning guide recommends allocators that keep memory for the same reason.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass

from nbmgpu.system.limits import usable_memory

GIB = 1 << 30
INT_MAX = 2**31 - 1
"""The largest value that ``mallopt`` accepts: a C int."""


@dataclass(frozen=True)
class MallocParameter:
    """A parameter of glibc's ``malloc``.

    Attributes:
        number: its number for ``mallopt``.
        variable: the environment variable that sets it.
        tunable: its name in ``GLIBC_TUNABLES``.
    """

    number: int
    variable: str
    tunable: str


TRIM_THRESHOLD = MallocParameter(-1, "MALLOC_TRIM_THRESHOLD_", "glibc.malloc.trim_threshold")
"""Free bytes at the end of the heap above which they are returned to the system."""

MMAP_THRESHOLD = MallocParameter(-3, "MALLOC_MMAP_THRESHOLD_", "glibc.malloc.mmap_threshold")
"""Bytes from which on a block is mapped separately, and unmapped when it is freed."""

MAX_MMAP_THRESHOLD = 32 << 20
"""The largest value that glibc accepts for ``MMAP_THRESHOLD``."""

WORKER_TRIM_THRESHOLD = 2 * MAX_MMAP_THRESHOLD
"""``TRIM_THRESHOLD`` of DataLoader workers: glibc's own maximum.

They may have inherited a large heap.
"""


def keep_freed_memory(world_size: int) -> None:
    """Configure the heap of this process, one of ``world_size`` ranks, to keep freed memory.

    Values in the environment take precedence.  Those set in the notebook are applied here: glibc
    read the environment before that.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:  # not glibc
        return
    kept = min(GIB, usable_memory() // (8 * world_size))
    for parameter, default in ((MMAP_THRESHOLD, MAX_MMAP_THRESHOLD), (TRIM_THRESHOLD, kept)):
        value = os.environ.get(parameter.variable, "")
        if value.isdigit():
            mallopt(parameter.number, min(int(value), INT_MAX))
        elif parameter.tunable not in os.environ.get("GLIBC_TUNABLES", ""):
            mallopt(parameter.number, default)
            if parameter is TRIM_THRESHOLD:
                os.register_at_fork(
                    after_in_child=lambda: mallopt(TRIM_THRESHOLD.number, WORKER_TRIM_THRESHOLD)
                )
