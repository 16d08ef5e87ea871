"""Has a map of the bundle been written to?  The system knows at once, without its bytes."""

from __future__ import annotations

import mmap

import numpy as np

FILE_PAGE, SWAPPED, PRESENT, ENTRY_SIZE = 1 << 61, 1 << 62, 1 << 63, 8
"""Bits of an entry in ``/proc/self/pagemap``, and its bytes (man proc_pid_pagemap)."""


def is_unmodified(view: memoryview) -> bool:
    """Tell whether this process has surely not written to ``view``, a private map of a file.

    The first write to a page of such a map gives the process a page of its own, which is
    no longer a page of the file.  False also means: the system does not tell.
    """
    if not view.nbytes:
        return True
    _ = view[0]  # so that there is a page to tell by
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
    told = len(entries) == last - first + 1 and bool((entries & FILE_PAGE).any())
    # Other bits say nothing: where the system counts soft-dirty pages, all of a new map are.
    own = (entries & PRESENT != 0) & (entries & FILE_PAGE == 0)
    return told and not own.any() and not (entries & SWAPPED).any()
