"""100,000 lines and 10,000 points from each rank: nothing lost, training and kernel not slowed."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from subprocess import PIPE, Popen

from benchmarks.kernels import Kernel
from benchmarks.measure import CONTROL, SCRIPT, Figure, Result, kernels
from benchmarks.rivals import OURS

LINES, POINTS = 100_000, 10_000
"""What each rank writes at once."""

AT_ONCE = f"""%%mgpu --gpus 2 --cpu --strategy none
import time
begun = time.perf_counter()
for number in range({LINES}):
    print("line", number)
printed = time.perf_counter() - begun
begun = time.perf_counter()
for number in range({POINTS}):
    nbmgpu.log(points=number)
logged = time.perf_counter() - begun
"""

SHORT, LONG = (512, 200), (1024, 12)
"""The side of the matrices of a step, and how many groups of stretches: 3 and 25 ms, roughly."""

STRETCH = 10
LOUD_STEPS = SHORT[1] * 4 * STRETCH

STEPS = f"""
import statistics, time, torch
torch.set_num_threads(1)
a, weight = torch.randn(SIDE, SIDE), torch.zeros(1, requires_grad=True)
clocks = time.perf_counter, time.process_time
ratios = [], []
for group in range(GROUPS):
    spent = {{True: [0.0, 0.0], False: [0.0, 0.0]}}
    for stretch in range(5):
        loud = stretch != group % 5
        begun = [clock() for clock in clocks]
        for step in range({STRETCH}):
            a @ a
            weight.sum().backward()
            if loud:
                OUTPUT
        for which, clock in enumerate(clocks):
            spent[loud][which] += clock() - begun[which]
    for kept, noisy, silent in zip(ratios, spent[True], spent[False]):
        kept.append(noisy / 4 / silent)
slower, dearer = map(statistics.median, ratios)
"""
"""Half a minute of steps; of five short stretches one is silent.

A machine's pace drifts, and it is disturbed: five stretches take a sixth of a second, in which
all are treated alike, and the median leaves out those groups in which one was not.  What is done
only now and then, as the kernel's looks, falls into silent stretches, too, and is not in here: the
kernel's processor time has a row of its own.  The wall clock has what a user waits; the rank's own
processor time leaves out what others take from ranks where cores are few.
"""

PRINT = 'for number in range(10): print("line", number)'


def _steps(output: str, size: tuple[int, int]) -> str:
    source = STEPS.replace("OUTPUT", f"\n{' ' * 16}".join(output.splitlines()))
    return source.replace("SIDE", str(size[0])).replace("GROUPS", str(size[1]))


def _cell(ranks: int, size: tuple[int, int]) -> str:
    steps = _steps(f"{PRINT}\nnbmgpu.log(points=number)", size)
    return f"%%mgpu --gpus {ranks} --cpu --strategy none" + steps


PLAIN = {SCRIPT: f"{PRINT}\npoints.append(number)", CONTROL: "pass"}
"""The same in scripts, which write every line to a file at once, too, and keep points."""

SCRIPTED = """
import sys
sys.stdout.reconfigure(line_buffering=True)
points = []
STEPS
print(slower, dearer, file=sys.stderr)
"""

LOST = """
import json
from nbmgpu.runs.events import EventTail, Metrics
run, folder = nbmgpu.last_run, nbmgpu.last_run.folder / "events"
lines = points = 0
for rank in range(run.record.world_size):
    lines += LINES - run.log(rank).count("line ")
    events = EventTail(folder / f"rank-{rank}.jsonl").read()
    told = (e for e in events if isinstance(e, Metrics) and e.name == "points")
    points += POINTS - sum(len(event.steps) for event in told)
print(json.dumps([lines, points]))
"""

LOUD = "a step with ten lines and a point, against a silent one"
LOUD_LONG = "a long step with ten lines and a point, against a silent one"
DEARER = "the same in processor time of the rank"

LAST_LINES = {"logs": {"rank": -1, "first": -1, "count": 100}}


def measure(rounds: int) -> list[Result]:
    """Measure a flood of lines and points, and what it costs others."""
    results: list[Result] = []
    with kernels([OURS], "import nbmgpu") as running:
        kernel = running[OURS]
        for _ in range(rounds):
            results += [*_at_once(kernel), *_in_training(kernel, 2), *_in_training(kernel, 1)]
            results += [*_in_scripts(SCRIPT, 2), *_in_scripts(CONTROL, 2), _in_long_steps(kernel)]
    return results


def _at_once(kernel: Kernel) -> list[Result]:
    kernel.run(AT_ONCE)
    printed, logged = json.loads(kernel.run("print([printed, logged])").text)
    return [
        Figure("100,000 lines from each of two ranks", "nbmgpu", printed),
        Figure("10,000 points from each of two ranks", "nbmgpu", logged),
        *_lost(kernel, "at once", LINES, POINTS),
    ]


def _in_training(kernel: Kernel, ranks: int) -> list[Result]:
    before = kernel.cpu_seconds()
    waits = kernel.clicks(_cell(ranks, SHORT), LAST_LINES)
    used = kernel.cpu_seconds() - before
    slower, dearer = json.loads(kernel.run("print([slower, dearer])").text)
    who = f"{ranks} rank{'s' * (ranks > 1)} training"
    return [
        Figure(f"{who}: {LOUD}", "nbmgpu", slower, "x"),
        Figure(f"{who}: {DEARER}", "nbmgpu", dearer, "x"),
        Figure(f"{who}: processor time of the kernel, all of the run", "nbmgpu", used),
        Figure(f"{who}: a click meanwhile, the slowest", "nbmgpu", max(waits)),
        *_lost(kernel, who, 10 * LOUD_STEPS, LOUD_STEPS),
    ]


def _in_long_steps(kernel: Kernel) -> Result:
    kernel.run(_cell(2, LONG), timeout=300)
    slower, _ = json.loads(kernel.run("print([slower, dearer])").text)
    return Figure(f"2 ranks training: {LOUD_LONG}", "nbmgpu", slower, "x")


def _in_scripts(what: str, ranks: int) -> list[Result]:
    """What printing alone takes, in scripts that nobody reads; and what nothing seems to take."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        command = [sys.executable, "-c", SCRIPTED.replace("STEPS", _steps(PLAIN[what], SHORT))]
        running = [
            stack.enter_context(Popen(command, stdout=file, stderr=PIPE, text=True))
            for file in files
        ]
        said = [process.communicate()[1] for process in running]
    slower, dearer = map(float, said[0].splitlines()[-1].split())  # of the first, as of rank 0
    who = f"{ranks} ranks training"
    return [
        Figure(f"{who}: {LOUD}", what, slower, "x"),
        Figure(f"{who}: {DEARER}", what, dearer, "x"),
    ]


def _lost(kernel: Kernel, when: str, written: int, logged: int) -> list[Result]:
    """What is missing of so many lines and points of each rank."""
    count = LOST.replace("LINES", str(written)).replace("POINTS", str(logged))
    lines, points = json.loads(kernel.run(count).text)
    return [
        Figure(f"{when}: lines lost", "nbmgpu", lines, ""),
        Figure(f"{when}: points lost", "nbmgpu", points, ""),
    ]
