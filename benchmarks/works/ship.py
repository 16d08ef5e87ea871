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
from benchmarks.rivals import FORGET, NBDISTRIBUTED, OURS, RIVALS, STAMP, TORCHRUN, Rival
from benchmarks.works.growth import phases, profile

SUM = f"""
assert abs(X.sum().item() / X.numel() - 1) < 0.01
{STAMP}
"""

TWICE = f"""{SUM}
dist.barrier()
begun = time.perf_counter()
X.sum()
took = time.perf_counter() - begun
with open(os.path.join(os.environ["BENCH_FOLDER"], f"steady-{{dist.get_rank()}}"), "w") as file:
    file.write(str(took))
"""
"""Both ranks read it once more, at once: what of a reading is no shipping.

What the first reading takes beyond that, as pages are mapped, stays with shipping.
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

THERE = "1 GiB to 2 ranks, until both have summed it"
MADE_THERE = "nbdistributed, which sends nothing: each worker made its own"
HERE = "1 GiB to 2 ranks of nbmgpu"
FIRST, AGAIN = f"{HERE}: first time", f"{HERE}: again, unchanged"
NOTHING = "4 numbers to 2 ranks of nbmgpu"
STEADY = "; a second reading, both at once"
MEMCPY, READING = "one memcpy", "reading it"
IN_TURN = "1 GiB, in turn with the tools"
BY_ITSELF = "1 GiB"
BEGUN = "; until both ranks have it, and begin the cell"

NO_TOOL = Rival(name="no tool", cell="{work}", package="torch")

GIB = 2**30
RANKS = (1, 2, 4)


def measure(rounds: int) -> list[Result]:
    """Measure shipping there, again, changed, and back, and the memory that it adds."""
    return [*_there(min(rounds, 3)), *_ours(rounds), *_memory(min(rounds, 3))]


def _there(rounds: int) -> list[Result]:
    """All tools that take a notebook's tensor; the memory that is taken meanwhile.

    A tool has waited for minutes while others had their turn, and some of those take and free ten
    times as much: so each runs something small first, as what stands beside this table has, too.
    """
    rivals = (*(rival for rival in RIVALS if rival is not TORCHRUN), NO_TOOL)
    with kernels(rivals) as running:

        def once(rival: Rival, make: str = MAKE) -> Sequence[Figure]:
            kernel = running[rival]
            if rival is NO_TOOL:
                kernel.run(make)
                touch(4)
                return _copied(kernel, IN_TURN)
            kernel.run(SMALL)
            _run(kernel, rival)
            if rival is OURS:
                kernel.run(FORGET)
            kernel.run(make)  # anew, so that no tool has it already
            touch(4)
            with memory_taken() as taken:
                summed = _run(kernel, rival)
            kernel.run("del X")
            name = MADE_THERE if rival is NBDISTRIBUTED else rival.name
            return [
                Figure(THERE, name, summed),
                Figure("1 GiB to 2 ranks: memory taken at most", name, taken[0] / GIB, "GiB"),
            ]

        interleaved(1, rivals, THERE, partial(once, make=SMALL))  # what comes once: imports
        return interleaved(rounds, rivals, THERE, once)


def _run(kernel: Kernel, rival: Rival) -> float:
    """Return the seconds until both ranks have summed it."""
    sent = time.time()
    if rival is NBDISTRIBUTED:  # as its users do, in a cell of its own: magics come first in one
        kernel.run("%sync")
    kernel.run(rival.run(SUM, "" if rival is OURS else "X"), timeout=300)
    return max(kernel.stamps(2)) - sent


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
            results += _copied(kernel, BY_ITSELF)
            touch(4)  # for the first time alone: the others take no new memory
            results += _summed(kernel, FIRST)
            results += _summed(kernel, AGAIN)
            kernel.run("X += 1; X -= 1")
            results += _summed(kernel, f"{HERE}: again, changed")
            kernel.run(SMALL)
            results += _summed(kernel, NOTHING)
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
        running.run(OURS.run("1"))
        running.settle()
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


def _copied(kernel: Kernel, where: str) -> list[Figure]:
    """Return what copying ``X``, and what reading it, takes in the kernel itself."""
    copied, read = map(float, kernel.run(ALONE).text.split())
    return [
        Figure(f"{where}: {MEMCPY}", "torch clone()", copied),
        Figure(f"{where}: {READING}", "torch sum()", read),
    ]


def _summed(kernel: Kernel, work: str) -> list[Result]:
    ran = kernel.run(OURS.run(TWICE))
    took = phases(kernel, ran)
    begun = took["read, pickle"] + took["fork"] + took["join, copy, map"]
    return [
        Figure(work, OURS.name, max(kernel.stamps(2)) - ran.sent),
        Figure(f"{work}{BEGUN}", OURS.name, begun),
        Figure(f"{work}{STEADY}", OURS.name, max(kernel.stamps(2, "steady"))),
    ]


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
