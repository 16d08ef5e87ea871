"""What a step frees is there for the next one, and is not fetched from the system again."""

import pytest

import nbmgpu
from nbmgpu.rank.heap import OWN_WORD

CELL = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for step in range(20):
    blocks = [ctypes.c_void_p(libc.malloc(16 << 20)) for _ in range(6)]  # as activations are
    for block in blocks:
        libc.memset(block, 1, ctypes.c_size_t(16 << 20))
    for block in reversed(blocks):
        libc.free(block)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    if step == 9:
        before = faults
each = (faults - before) / 10
"""
"""Of torch's own blocks some luck decides: a small one above them keeps them all."""


@pytest.fixture
def faults(monkeypatch):
    """Returns how many pages a rank fetches in each step, in an environment."""
    for name in (*OWN_WORD, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)

    def run(**environment: str) -> float:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        namespace: dict[str, float] = {}
        nbmgpu.run(CELL, namespace, gpus=1, cpu=True)
        return namespace["each"]

    return run


def test_what_a_step_frees_the_next_one_finds(faults):
    assert faults() < 100


def test_an_environment_that_decides_is_left_alone(faults):
    assert faults(MALLOC_TRIM_THRESHOLD_="131072") > 1000
