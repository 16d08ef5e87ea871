"""A gibibyte to the ranks: until they have summed it, again unchanged, back; and its memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import psutil

from benchmarks.kernels import Kernel
from benchmarks.measure import Figure, Result, interleaved, kernel, kernels, touch
from benchmarks.rivals import FORGET, OURS, RIVALS, STAMP, TORCHRUN, Rival
from benchmarks.works.growth import profile

SUM = f"""
assert abs(X.sum().item() / X.numel() - 1) < 0.01
{STAMP}
"""

ALONE = """
import time
begun = time.time(); Y = X.clone(); copied = time.time() - begun; del Y
begun = time.time(); s = X.sum().item(); read = time.time() - begun
print(copied, read)
"""

MAKE = "import torch\nX = torch.ones(2**28)"
SMALL = MAKE.replace("2**28", "4")
HELD = "import time\nX.sum()\ntime.sleep(1)"
"""All of it is read, and ranks stay until their memory has been looked at."""

GIB = 2**30
RANKS = (1, 2, 4)


def measure(rounds: int) -> list[Result]:
    """Measure shipping there, again, changed, and back, and the memory that it adds."""
    return [*_there(min(rounds, 3)), *_ours(rounds), *_memory(min(rounds, 3))]


def _there(rounds: int) -> list[Result]:
    """All tools that take a notebook's tensor; the memory that is taken meanwhile."""
    rivals = tuple(rival for rival in RIVALS if rival is not TORCHRUN)
    work = "1 GiB to 2 ranks"
    with kernels(rivals) as running:

        def once(rival: Rival, make: str = MAKE) -> Sequence[Figure]:
            kernel = running[rival]
            kernel.run(make)  # anew, so that no tool has it already
            touch(4)
            with memory_taken() as taken:
                ran = kernel.run(_cell(rival), timeout=300)
                summed = max(kernel.stamps(2)) - ran.sent
            kernel.run("del X")
            return [
                Figure(f"{work}, until both have summed it", rival.name, summed),
                Figure(f"{work}: memory taken at most", rival.name, taken[0] / GIB, "GiB"),
            ]

        interleaved(1, rivals, work, partial(once, make=SMALL))  # what comes once: imports
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
            touch(4)
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
                touch(4)
                results.append(Figure(work, "nbmgpu", _summed(kernel)))
            kernel.run(SMALL)
            results.append(Figure("4 numbers to 2 ranks", "nbmgpu", _summed(kernel)))
            kernel.run(MAKE)
            touch(4)
            phases = profile(kernel, OURS.run("X += 1"))
            results += [
                Figure("1 GiB trained: the whole cell", "nbmgpu", phases["in all"]),
                Figure("1 GiB trained: the way back", "nbmgpu", phases["back, adopt"]),
            ]
    return results


def _memory(rounds: int) -> list[Result]:
    """What a gibibyte adds to the memory of the kernel, the server and all ranks, at the peak."""
    results: list[Result] = []
    with kernel() as running:
        running.run(OURS.setup)
        for _ in range(rounds):
            for ranks in RANKS:
                cell = OURS.run(HELD).replace("--gpus 2", f"--gpus {ranks}")
                peaks = []
                for make in (SMALL, MAKE):
                    running.run(f"{FORGET}\n{make}")
                    with memory_taken() as taken, pss_taken(running) as pss:
                        running.run(cell)
                    peaks.append((pss[0], taken[0]))
                (pss_without, taken_without), (pss_with, taken_with) = peaks
                work = f"1 GiB to {ranks} rank{'s' * (ranks > 1)}: memory added at most"
                added = (pss_with - pss_without) / GIB, (taken_with - taken_without) / GIB
                results += [
                    Figure(f"{work} (PSS)", OURS.name, added[0], "GiB"),
                    Figure(f"{work} (taken of what is free)", OURS.name, added[1], "GiB"),
                ]
                running.run("del X")
    return results


def _summed(kernel: Kernel) -> float:
    ran = kernel.run(OURS.run(SUM))
    return max(kernel.stamps(2)) - ran.sent


def memory_taken() -> AbstractContextManager[list[float]]:
    """Watch how much less memory the machine has, at most, in bytes."""
    return _peak(lambda: -psutil.virtual_memory().available)


def pss_taken(kernel: Kernel) -> AbstractContextManager[list[float]]:
    """Watch how much the memory of all that was started from ``kernel`` grows, at most, in bytes.

    What processes share counts once: each has its part of it.  One is asked after the other, and a
    page that others map meanwhile counts too often; so what two looks in a row have seen counts.
    """
    first, last = psutil.Process(kernel.pid), [float("inf")]

    def twice() -> float:
        before, last[0] = last[0], sum(map(_pss, [first, *first.children(recursive=True)]))
        return min(before, last[0])

    return _peak(twice)


def _pss(process: psutil.Process) -> float:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@contextmanager
def _peak(used: Callable[[], float]) -> Iterator[list[float]]:
    """Watch how much more than now is used at most."""
    before = used()
    taken, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            taken[0] = max(taken[0], used() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()
