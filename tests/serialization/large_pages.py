"""Detects whether this system has large pages for in-memory files, and counts them."""

import os
import sys
from pathlib import Path

from nbmgpu.serialization.file_mapping import SHARED, FileMap
from nbmgpu.system.procfs import LARGE_PAGE


def large_pages_work():
    """Return whether this system supports large pages for in-memory files."""
    if sys.platform != "linux":
        return False
    made = os.memfd_create("test")
    os.ftruncate(made, LARGE_PAGE)
    os.pwrite(made, b"1", 0)
    try:
        FileMap(made, LARGE_PAGE, SHARED).make_large_pages(0, LARGE_PAGE)
    except OSError:
        return False
    finally:
        os.close(made)
    return True


LARGE_PAGES_WORK = large_pages_work()


def bytes_in_large_pages(fd):
    """Return how many bytes of ``fd`` this process maps in large pages."""
    name, found, matches = os.readlink(f"/proc/self/fd/{fd}").split(" ")[0], 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key.endswith(("ShmemPmdMapped", "FilePmdMapped")):
            found += matches * int(rest.split()[0]) * 1024
        elif "-" in key.split(" ")[0]:
            matches = name in line
    return found
