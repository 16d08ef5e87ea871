"""Detects from the process's page table whether a mapping of the bundle has been written to."""

from __future__ import annotations

import mmap

import numpy as np

FILE_PAGE, SWAPPED, PRESENT, ENTRY_SIZE = 1 << 61, 1 << 62, 1 << 63, 8
"""Bits of an entry in ``/proc/self/pagemap``, and its size in bytes (man proc_pid_pagemap)."""


def is_unmodified(view: memoryview) -> bool:
    """Return whether this process has certainly not written to a private file mapping.

    The first write to a page of such a mapping gives the process its own copy, which no longer is a
    page of the file.  Also returns False if the system does not provide this information.
    """
    if not view.nbytes:
        return True
    _ = view[0]  # makes at least one page present
    page = mmap.PAGESIZE
    start = np.frombuffer(view, np.uint8).ctypes.data
    first, last = start // page, (start + view.nbytes - 1) // page
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(first * ENTRY_SIZE)
            data = file.read((last - first + 1) * ENTRY_SIZE)
    except OSError:
        return False
    entries = np.frombuffer(data, np.uint64)
    is_known = len(entries) == last - first + 1 and bool((entries & FILE_PAGE).any())
    # The soft-dirty bit is of no use: it is set for all pages of a new mapping.
    copied = (entries & PRESENT != 0) & (entries & FILE_PAGE == 0)
    return is_known and not copied.any() and not (entries & SWAPPED).any()
