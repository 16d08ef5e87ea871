"""A cell of many small steps, with metrics and output: no process of its run grows with them.

``NBMGPU_LONG_RUN_MINUTES=30 pytest -s tests/faults/test_long_run.py`` prints the memory over time;
``NBMGPU_LONG_RUN_PAUSE=0.05`` leaves the processors to other work.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import psutil
import pytest
from invariants import left, next_run_problems
from sessions import KernelSession, Session, wait_for

from nbmgpu.runs.run import Run

pytestmark = [
    pytest.mark.matrix("nbmgpu/engines", "nbmgpu/kernel", "nbmgpu/rank", "nbmgpu/runs"),
    pytest.mark.slow,
]

MINUTES = float(os.environ.get("NBMGPU_LONG_RUN_MINUTES", "3"))
PAUSE = float(os.environ.get("NBMGPU_LONG_RUN_PAUSE", "0.005"))
"""Seconds between two steps."""

SAMPLES = 60
"""Times at which memory is measured, in all."""

CELL = """
import time, nbmgpu
end, n = time.time() + SECONDS, 0
while time.time() < end:
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        n += 1
        nbmgpu.log(loss=loss.item())
        if n % 10 == 0:
            print("step", n, "loss", loss.item())
        time.sleep(PAUSE)
answer = n
"""

MIB = 1 << 20
GROWTH = {"kernel": 10.0, "fork server": 4.0, "launcher": 4.0, "rank 0": 8.0, "rank 1": 8.0}
"""MiB by which a process may grow after the first third of the run, whatever its length."""

POINT = 600
"""Bytes that a step may take in the kernel besides, which keeps the points of all curves."""


def processes(session: Session, run: Run) -> dict[str, psutil.Process]:
    """Return the processes of a run, once all of them have started."""

    def started() -> bool:
        run.refresh()
        return run.view.launcher is not None and all(r.process for r in run.view.ranks)

    wait_for(started, 120, "the start of all ranks", 0.05)
    assert run.view.launcher is not None
    pids = {"kernel": session.pid, "fork server": session.server()}
    pids["launcher"] = run.view.launcher.pid
    pids |= {f"rank {n}": view.process.pid for n, view in enumerate(run.view.ranks) if view.process}
    return {name: psutil.Process(pid) for name, pid in pids.items()}


def sample(found: dict[str, psutil.Process], memory: dict[str, list[float]]) -> None:
    """Add the resident memory of each process in MiB.

    Private memory would grow in all that is forked, with each page of the fork server that is
    written to.
    """
    measured = {name: process.memory_info().rss / MIB for name, process in found.items()}
    for name, value in measured.items():
        memory[name].append(value)


def show(name: str, values: list[float]) -> float:
    """Print the memory of a process in each sixth of the time; return its growth.

    The first third is the warm-up; the growth is that from the third sixth to the last.
    """
    size = len(values) // 6
    assert size, "the run was too short"
    sixths = [statistics.median(values[n * size : (n + 1) * size]) for n in range(6)]
    print(f"\n{name}: " + ", ".join(f"{each:.1f}" for each in sixths), end=" MiB", flush=True)
    return sixths[-1] - sixths[2]


@pytest.mark.timeout(60 * MINUTES + 400)
def test_memory_does_not_grow_with_steps(tmp_path: Path) -> None:
    session = KernelSession(tmp_path)
    try:
        session.ask(cell="answer = 6 * 7")
        session.known = set(os.listdir(session.runs))
        names = {"SECONDS": str(60 * MINUTES), "PAUSE": str(PAUSE)}
        options = {"strategy": "ddp", "exact": "never"}
        session.send({"cell": CELL, "names": names, "options": options})
        run = session.new_run()
        found = processes(session, run)
        memory: dict[str, list[float]] = {name: [] for name in found}
        end = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end - 2:
            time.sleep(min(60 * MINUTES / SAMPLES, end - time.monotonic()))
            try:
                sample(found, memory)
            except psutil.NoSuchProcess:
                break
        grown = {name: show(name, values) for name, values in memory.items()}
        reply = session.reply(120)
        assert reply["error"] == ""
        print(f"{MINUTES:g} minutes, {reply['value']} steps")
        for name, value in grown.items():
            kept = int(reply["value"]) * POINT / MIB if name == "kernel" else 0.0
            assert value < GROWTH[name] + kept, f"{name} has grown by {value:.1f} MiB"
        problems = left(session) + next_run_problems(session)
        assert not problems, problems
    finally:
        session.close()
