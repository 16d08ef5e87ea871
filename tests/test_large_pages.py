"""Memory is collapsed into large pages, which makes forks cheaper, without changing its bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
import mmap, os
from pathlib import Path
from nbmgpu.engines.local.huge_pages import LargePages
from nbmgpu.system.procfs import LARGE_PAGE

def in_large_pages():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("AnonHugePages"))

size = 16 * LARGE_PAGE
block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
pattern = bytes(range(256)) * (size // 256)
block[:] = pattern
before = in_large_pages()
pages = LargePages()
while pages.pending:
    pages.collapse_next()
assert block[:] == pattern
assert in_large_pages() - before >= size // 2, (before, in_large_pages())
if (pid := os.fork()) == 0:
    block[0] = 99
    os._exit(block[1:] != pattern[1:])
assert os.waitpid(pid, 0)[1] == 0
assert block[:] == pattern
"""


def _release() -> tuple[int, ...]:
    version = Path("/proc/sys/kernel/osrelease")
    if sys.platform != "linux" or not version.exists():
        return (0,)
    return tuple(int(part) for part in version.read_text().split("-")[0].split(".")[:2])


@pytest.mark.skipif(_release() < (6, 1), reason="MADV_COLLAPSE needs Linux 6.1")
def test_collapsed_memory_is_unchanged() -> None:
    subprocess.run([sys.executable, "-c", SOURCE], check=True, timeout=60)
