"""100,000 lines and 10,000 metrics from each rank: losses, and the cost for training and kernel."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import ExitStack
from subprocess import PIPE, Popen

from benchmarks.kernels import Kernel
from benchmarks.measure import CONTROL, SCRIPT, Figure, Result, kernels
from benchmarks.tools import OURS

LINES, POINTS = 100_000, 10_000
"""Lines and metrics that each rank writes at once."""

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
"""Rows of the square matrices of a step, and the number of groups: about 3 and 25 ms per step."""

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
wall_ratio, cpu_ratio = map(statistics.median, ratios)
"""
"""Half a minute of steps in groups of five stretches, of which one is silent.

A machine's speed drifts, and other processes disturb it.  A group takes a sixth of a second, in
which all stretches run under the same conditions, and the median excludes groups in which one did
not.  Periodic work, such as the kernel's polling, also happens in silent stretches, so it is not
included: the kernel's CPU time has its own row.  Wall time is the time that a user waits; the
rank's own CPU time excludes what other processes take from ranks if there are few cores.
"""

PRINT = 'for number in range(10): print("line", number)'


def _steps(output: str, size: tuple[int, int]) -> str:
    source = STEPS.replace("OUTPUT", f"\n{' ' * 16}".join(output.splitlines()))
    return source.replace("SIDE", str(size[0])).replace("GROUPS", str(size[1]))


def _cell(ranks: int, size: tuple[int, int]) -> str:
    steps = _steps(f"{PRINT}\nnbmgpu.log(points=number)", size)
    return f"%%mgpu --gpus {ranks} --cpu --strategy none" + steps


PLAIN = {SCRIPT: f"{PRINT}\npoints.append(number)", CONTROL: "pass"}
"""The same in scripts, which also write each line to a file at once; metrics go to a list."""

SCRIPTED = """
import sys
sys.stdout.reconfigure(line_buffering=True)
points = []
STEPS
print(wall_ratio, cpu_ratio, file=sys.stderr)
"""

LOST = """
import json
from nbmgpu.runs.event_file import EventTail
from nbmgpu.runs.events import Metrics
run, folder = nbmgpu.last_run, nbmgpu.last_run.folder / "events"
lines = points = 0
for rank in range(run.record.world_size):
    lines += LINES - run.log(rank).count("line ")
    events = EventTail(folder / f"rank-{rank}.jsonl").read()
    metrics = (e for e in events if isinstance(e, Metrics) and e.name == "points")
    points += POINTS - sum(len(event.steps) for event in metrics)
print(json.dumps([lines, points]))
"""

LOUD = "a step with ten lines and a metric, against a silent one"
LOUD_LONG = "a long step with ten lines and a metric, against a silent one"
CPU_TIME = "the same in CPU time of the rank"

LAST_LINES = {"logs": {"rank": -1, "first": -1, "count": 100}}


def measure(rounds: int) -> list[Result]:
    """Measure heavy output, and what it costs training and the kernel."""
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
        Figure("10,000 metrics from each of two ranks", "nbmgpu", logged),
        *_lost(kernel, "at once", LINES, POINTS),
    ]


def _in_training(kernel: Kernel, ranks: int) -> list[Result]:
    before = kernel.cpu_seconds()
    response_times = kernel.panel_response_times(_cell(ranks, SHORT), LAST_LINES)
    used = kernel.cpu_seconds() - before
    wall_ratio, cpu_ratio = json.loads(kernel.run("print([wall_ratio, cpu_ratio])").text)
    title = f"{ranks} rank{'s' * (ranks > 1)} training"
    return [
        Figure(f"{title}: {LOUD}", "nbmgpu", wall_ratio, "x"),
        Figure(f"{title}: {CPU_TIME}", "nbmgpu", cpu_ratio, "x"),
        Figure(f"{title}: CPU time of the kernel during the run", "nbmgpu", used),
        Figure(f"{title}: the slowest response of the panel", "nbmgpu", max(response_times)),
        *_lost(kernel, title, 10 * LOUD_STEPS, LOUD_STEPS),
    ]


def _in_long_steps(kernel: Kernel) -> Result:
    kernel.run(_cell(2, LONG), timeout=300)
    wall_ratio, _ = json.loads(kernel.run("print([wall_ratio, cpu_ratio])").text)
    return Figure(f"2 ranks training: {LOUD_LONG}", "nbmgpu", wall_ratio, "x")


def _in_scripts(tool: str, ranks: int) -> list[Result]:
    """Measure printing alone in scripts whose output is not read, and the measurement error."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(ranks)]
        command = [sys.executable, "-c", SCRIPTED.replace("STEPS", _steps(PLAIN[tool], SHORT))]
        running = [
            stack.enter_context(Popen(command, stdout=file, stderr=PIPE, text=True))
            for file in files
        ]
        stderr = [process.communicate()[1] for process in running]
    first = stderr[0].splitlines()[-1]  # as for nbmgpu, where it is rank 0
    wall_ratio, cpu_ratio = map(float, first.split())
    title = f"{ranks} ranks training"
    return [
        Figure(f"{title}: {LOUD}", tool, wall_ratio, "x"),
        Figure(f"{title}: {CPU_TIME}", tool, cpu_ratio, "x"),
    ]


def _lost(kernel: Kernel, when: str, written: int, logged: int) -> list[Result]:
    """Count the missing lines and metrics of all ranks."""
    count = LOST.replace("LINES", str(written)).replace("POINTS", str(logged))
    lines, points = json.loads(kernel.run(count).text)
    return [
        Figure(f"{when}: lines lost", "nbmgpu", lines, ""),
        Figure(f"{when}: metrics lost", "nbmgpu", points, ""),
    ]
