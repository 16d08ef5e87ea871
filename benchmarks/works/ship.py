"""A gibibyte to two ranks, until both have summed it; again unchanged; and back, trained."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from benchmarks.kernels import Kernel
from benchmarks.measure import Figure, Result, interleaved, kernels
from benchmarks.rivals import FORGET, OURS, RIVALS, STAMP, TORCHRUN, Rival

SUM = f"""
assert abs(X.sum().item() - 2**28) < 2**20
{STAMP}
"""

ALONE = """
import time
begun = time.time(); Y = X.clone(); copied = time.time() - begun; del Y
begun = time.time(); s = X.sum().item(); read = time.time() - begun
print(copied, read)
"""

MAKE = "import torch\nX = torch.ones(2**28)"
GIB = 2**30


def measure(rounds: int) -> list[Result]:
    """Measure shipping there, again, changed, and back."""
    return [*_there(min(rounds, 3)), *_ours(rounds)]


def _there(rounds: int) -> list[Result]:
    """All tools that take a notebook's tensor; the memory that is taken meanwhile."""
    rivals = tuple(rival for rival in RIVALS if rival is not TORCHRUN)
    work = "1 GiB to 2 ranks"
    with kernels(rivals) as running:

        def once(rival: Rival) -> Sequence[Figure]:
            kernel = running[rival]
            kernel.run(MAKE)  # anew, so that no tool has it already
            with memory_taken() as taken:
                ran = kernel.run(_cell(rival), timeout=300)
                summed = max(kernel.stamps(2)) - ran.sent
            kernel.run("del X")
            return [
                Figure(f"{work}, until both have summed it", rival.name, summed),
                Figure(f"{work}: memory taken at most", rival.name, taken[0] / GIB, "GiB"),
            ]

        interleaved(1, rivals, work, once)
        return interleaved(rounds, rivals, work, once)


def _cell(rival: Rival) -> str:
    if rival.name == "nbdistributed":  # it sends nothing by itself: this is what its users do
        return f"%sync\n%%distributed\n{SUM}"
    if rival is OURS:
        return rival.run(SUM)
    return rival.run(SUM, "X")


def _ours(rounds: int) -> list[Result]:
    """What only nbmgpu has: the same data again, changed data, trained weights back."""
    results: list[Result] = []
    with kernels([OURS]) as running:
        kernel = running[OURS]
        kernel.run(OURS.run("1"))
        time.sleep(3)
        for _ in range(rounds):
            kernel.run(f"{FORGET}\n{MAKE}")
            copied, read = map(float, kernel.run(ALONE).text.split())
            results += [
                Figure("1 GiB: one memcpy", "torch clone()", copied),
                Figure("1 GiB: reading it", "torch sum()", read),
            ]
            for work, before in [
                ("1 GiB to 2 ranks: first time", ""),
                ("1 GiB to 2 ranks: again, unchanged", ""),
                ("1 GiB to 2 ranks: again, changed", "X += 1; X -= 1"),
            ]:
                kernel.run(before or "pass")
                results.append(Figure(work, "nbmgpu", _summed(kernel)))
            kernel.run(OURS.run("X = None"))
            kernel.run(f"{MAKE}")
            ran = kernel.run(OURS.run("X += 1"))
            results.append(Figure("1 GiB trained and back", "nbmgpu", ran.answered - ran.sent))
    return results


def _summed(kernel: Kernel) -> float:
    ran = kernel.run(OURS.run(SUM))
    return max(kernel.stamps(2)) - ran.sent


@contextmanager
def memory_taken() -> Iterator[list[float]]:
    """Watch how much less memory the machine has, at most, in bytes."""
    before = psutil.virtual_memory().available
    taken, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            taken[0] = max(taken[0], before - psutil.virtual_memory().available)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()
