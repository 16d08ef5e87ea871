"""What a step frees is there for the next one, and is not fetched from the system again."""

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

def faults_of_a_step():
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

here = faults_of_a_step()
there, send = os.pipe()
if os.fork() == 0:
    os.write(send, b"%d" % faults_of_a_step())
    os._exit(0)
in_a_child = int(os.read(there, 100))
os.wait()
"""
"""Of torch's own blocks some luck decides: a small one above them keeps them all."""


@pytest.fixture
def faults(monkeypatch):
    """Returns how many pages a rank, and a child of it, fetch in each step, in an environment."""
    for name in (MMAP_THRESHOLD.variable, TRIM_THRESHOLD.variable, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)

    def run(**environment: str) -> tuple[float, float]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        namespace: dict[str, float] = {}
        nbmgpu.run(CELL, namespace, gpus=1, cpu=True)
        return namespace["here"], namespace["in_a_child"]

    return run


def test_what_a_step_frees_the_next_one_finds(faults):
    here, in_a_child = faults()
    assert here < 100
    assert in_a_child > 1000, "loader workers would keep as much as their rank, each"


@pytest.mark.parametrize(("kept", "few"), [(1 << 17, False), (1 << 30, True)])
def test_what_the_environment_says_holds(faults, kept, few):
    here, _ = faults(MALLOC_TRIM_THRESHOLD_=str(kept))
    assert (here < 100) is few
