"""1 GiB to the ranks: until they have summed it, again unchanged, and written back; its memory."""

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
from benchmarks.tools import FORGET, NBDISTRIBUTED, OURS, STAMP, TOOLS, TORCHRUN, Tool
from benchmarks.workloads.scaling import phases, profile

SUM = f"""
assert abs(X.sum().item() / X.numel() - 1) < 0.01
{STAMP}
"""

SUM_TWICE = f"""{SUM}
dist.barrier()
begun = time.perf_counter()
X.sum()
seconds = time.perf_counter() - begun
with open(os.path.join(os.environ["BENCH_FOLDER"], f"steady-{{dist.get_rank()}}"), "w") as file:
    file.write(str(seconds))
"""
"""Both ranks read it a second time, simultaneously: the part of reading that is not transfer.

The first reading takes longer because it maps pages; that counts as transfer.
"""

IN_KERNEL = """
import time
begun = time.time(); Y = X.clone(); copied = time.time() - begun; del Y
begun = time.time(); s = X.sum().item(); read = time.time() - begun
print(copied, read)
"""

MAKE = "import torch\nX = torch.ones(2**28)"
SMALL = MAKE.replace("2**28", "4")
READ_AND_WAIT = "import time\nX.sum()\ntime.sleep(1)"
"""Ranks read all of it, and wait until their memory has been measured."""

ALL_TOOLS = "1 GiB to 2 ranks, until both have summed it"
NO_TRANSFER = "nbdistributed, which sends nothing: each worker creates its own"
ONLY_NBMGPU = "1 GiB to 2 ranks of nbmgpu"
FIRST_RUN, SECOND_RUN = f"{ONLY_NBMGPU}: first run", f"{ONLY_NBMGPU}: again, unchanged"
FOUR_NUMBERS = "4 numbers to 2 ranks of nbmgpu"
SECOND_READ = "; second reading, both simultaneously"
MEMCPY, READING = "one memcpy", "reading it"
WITH_TOOLS = "1 GiB, in turn with the tools"
NBMGPU_ALONE = "1 GiB"
UNTIL_CELL = "; until both ranks have it and begin the cell"

NO_TOOL = Tool(name="no tool", cell="{workload}", package="torch")

GIB = 2**30
RANKS = (1, 2, 4)


def measure(rounds: int) -> list[Result]:
    """Measure sending, sending again, changed data, write-back, and the memory that they add."""
    return [*_all_tools(min(rounds, 3)), *_only_nbmgpu(rounds), *_memory(min(rounds, 3))]


def _all_tools(rounds: int) -> list[Result]:
    """Measure all tools that accept a notebook's tensor, and the decrease of available memory.

    A tool has been idle for minutes while the others had their turns, and some of them allocate ten
    times as much.  So each runs a small workload first, as in the tables of nbmgpu alone.
    """
    tools = (*(tool for tool in TOOLS if tool is not TORCHRUN), NO_TOOL)
    with kernels(tools) as running:

        def once(tool: Tool, make: str = MAKE) -> Sequence[Figure]:
            kernel = running[tool]
            if tool is NO_TOOL:
                kernel.run(make)
                touch(4)
                return _copy_and_read(kernel, WITH_TOOLS)
            kernel.run(SMALL)
            _until_summed(kernel, tool)
            if tool is OURS:
                kernel.run(FORGET)
            kernel.run(make)  # a new tensor that no tool has
            touch(4)
            with memory_decrease() as decrease:
                summed = _until_summed(kernel, tool)
            kernel.run("del X")
            name = NO_TRANSFER if tool is NBDISTRIBUTED else tool.name
            return [
                Figure(ALL_TOOLS, name, summed),
                Figure("1 GiB to 2 ranks: decrease of free memory", name, decrease[0] / GIB, "GiB"),
            ]

        interleaved(1, tools, ALL_TOOLS, partial(once, make=SMALL))  # imports happen once
        return interleaved(rounds, tools, ALL_TOOLS, once)


def _until_summed(kernel: Kernel, tool: Tool) -> float:
    """Return the seconds until both ranks have summed it."""
    sent = time.time()
    if tool is NBDISTRIBUTED:  # a cell magic must come first in its cell
        kernel.run("%sync")
    kernel.run(tool.run(SUM, "" if tool is OURS else "X"), timeout=300)
    return max(kernel.stamps(2)) - sent


def _only_nbmgpu(rounds: int) -> list[Result]:
    """Measure what only nbmgpu does: the same data again, changed data, write-back."""
    results: list[Result] = []
    with kernels([OURS]) as running:
        kernel = running[OURS]
        kernel.run(OURS.run("1"))
        time.sleep(3)
        for _ in range(rounds):
            touch(4)
            kernel.run(f"{FORGET}\n{MAKE}")
            results += _copy_and_read(kernel, NBMGPU_ALONE)
            touch(4)  # for the first run only: the others need no new memory
            results += _summed(kernel, FIRST_RUN)
            results += _summed(kernel, SECOND_RUN)
            kernel.run("X += 1; X -= 1")
            results += _summed(kernel, f"{ONLY_NBMGPU}: again, changed")
            kernel.run(SMALL)
            results += _summed(kernel, FOUR_NUMBERS)
            kernel.run(MAKE)
            touch(4)
            phases = profile(kernel, OURS.run("X += 1"))
            results += [
                Figure("1 GiB trained: the whole cell", "nbmgpu", phases["total"]),
                Figure("1 GiB trained: write-back", "nbmgpu", phases["write-back"]),
            ]
    return results


def _memory(rounds: int) -> list[Result]:
    """Measure the peak memory that 1 GiB adds to the kernel, the server and all ranks."""
    results: list[Result] = []
    with kernel() as running:
        running.run(OURS.setup)
        running.run(OURS.run("1"))
        running.settle()
        for _ in range(rounds):
            for ranks in RANKS:
                cell = OURS.run(READ_AND_WAIT).replace("--gpus 2", f"--gpus {ranks}")
                peaks = []
                for make in (SMALL, MAKE):
                    running.run(f"{FORGET}\n{make}")
                    with memory_decrease() as decrease, pss_increase(running) as pss:
                        running.run(cell)
                    peaks.append((pss[0], decrease[0]))
                (pss_without, decrease_without), (pss_with, decrease_with) = peaks
                workload = f"1 GiB to {ranks} rank{'s' * (ranks > 1)}: peak memory added"
                added = (pss_with - pss_without) / GIB, (decrease_with - decrease_without) / GIB
                results += [
                    Figure(f"{workload} (PSS)", OURS.name, added[0], "GiB"),
                    Figure(f"{workload} (decrease of free memory)", OURS.name, added[1], "GiB"),
                ]
                running.run("del X")
    return results


def _copy_and_read(kernel: Kernel, where: str) -> list[Figure]:
    """Return the time of copying and of reading ``X`` in the kernel itself."""
    copied, read = map(float, kernel.run(IN_KERNEL).text.split())
    return [
        Figure(f"{where}: {MEMCPY}", "torch clone()", copied),
        Figure(f"{where}: {READING}", "torch sum()", read),
    ]


def _summed(kernel: Kernel, workload: str) -> list[Result]:
    cell = kernel.run(OURS.run(SUM_TWICE))
    seconds = phases(kernel, cell)
    until_cell = seconds["read, pickle"] + seconds["fork"] + seconds["join, copy, map"]
    return [
        Figure(workload, OURS.name, max(kernel.stamps(2)) - cell.sent),
        Figure(f"{workload}{UNTIL_CELL}", OURS.name, until_cell),
        Figure(f"{workload}{SECOND_READ}", OURS.name, max(kernel.stamps(2, "steady"))),
    ]


def memory_decrease() -> AbstractContextManager[list[float]]:
    """Record the largest decrease of available memory, in bytes."""
    return _max_increase(lambda: -psutil.virtual_memory().available)


def pss_increase(kernel: Kernel) -> AbstractContextManager[list[float]]:
    """Record the largest increase of PSS of ``kernel`` and its child processes, in bytes.

    Shared memory counts once, divided among its processes.  Processes are read one after another,
    and a page that others map meanwhile counts too often; so the minimum of two reads is used.
    """
    first, last = psutil.Process(kernel.pid), [float("inf")]

    def twice() -> float:
        before, last[0] = last[0], sum(map(_pss, [first, *first.children(recursive=True)]))
        return min(before, last[0])

    return _max_increase(twice)


def _pss(process: psutil.Process) -> float:
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has ended
        return 0
    return sum(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@contextmanager
def _max_increase(used: Callable[[], float]) -> Iterator[list[float]]:
    """Record the largest increase of ``used()``."""
    before = used()
    increase, over = [0.0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            increase[0] = max(increase[0], used() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield increase
    finally:
        over.set()
        thread.join()
