"""Memory that a step frees is reused by the next one, without page faults."""

import sys

import pytest

import nbmgpu
from nbmgpu.rank.metrics.allocator import MMAP_THRESHOLD, TRIM_THRESHOLD

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")

CELL = """
import ctypes, os, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
PR_SET_THP_DISABLE = 41
libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # else hundreds of pages are one fault

def faults_per_step():
    for step in range(20):
        blocks = [ctypes.c_void_p(libc.malloc(16 << 20)) for _ in range(6)]  # as activations are
        for block in blocks:
            libc.memset(block, 1, ctypes.c_size_t(16 << 20))
        for block in reversed(blocks):
            libc.free(block)
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        if step == 9:
            before = faults
    return (faults - before) / 10

here = faults_per_step()
there, send = os.pipe()
if os.fork() == 0:
    os.write(send, b"%d" % faults_per_step())
    os._exit(0)
in_a_child = int(os.read(there, 100))
os.wait()
"""
"""Not with torch's own blocks: a small block above them may keep them in the heap by chance."""


@pytest.fixture
def faults(monkeypatch):
    """Runs the cell in an environment; returns page faults per step of a rank and of its child."""
    for name in (MMAP_THRESHOLD.variable, TRIM_THRESHOLD.variable, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)

    def run(**environment: str) -> tuple[float, float]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        namespace: dict[str, float] = {}
        nbmgpu.run(CELL, namespace, gpus=1, cpu=True)
        return namespace["here"], namespace["in_a_child"]

    return run


def test_freed_memory_is_reused_by_the_next_step(faults):
    here, in_a_child = faults()
    assert here < 100
    assert in_a_child > 1000, "each DataLoader worker would keep as much memory as its rank"


@pytest.mark.parametrize(("kept", "few"), [(1 << 17, False), (1 << 30, True)])
def test_the_environment_takes_precedence(faults, kept, few):
    here, _ = faults(MALLOC_TRIM_THRESHOLD_=str(kept))
    assert (here < 100) is few
