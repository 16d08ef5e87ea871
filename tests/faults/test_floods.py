"""Much output, many points, and many runs at once; and what 200 runs leave in the processes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cases import ALL
from fault_notebook import TRAIN
from invariants import left, next_run_problems
from sessions import KernelSession, PlainSession, Session, wait_for

from nbmgpu.runs.run import Run

pytestmark = pytest.mark.matrix("nbmgpu/engines", "nbmgpu/kernel", "nbmgpu/ui", "nbmgpu/runs")

MIB = 1 << 20


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A kernel, whose runs have a panel."""
    session = KernelSession(tmp_path_factory.mktemp("f"))
    session.ask(cell=TRAIN, seconds=120)
    yield session
    session.close()


def memory(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    return psutil.Process(pid).memory_info().rss / MIB


FLOODS = {
    "200,000 lines": ("for n in range(100_000): print('line', n)", 2_000_000),
    "one line of 50 MB": ("print(50_000_000 * 'x')", 100_000_000),
    "binary output": ("import os\nfor _ in range(64): os.write(1, os.urandom(1 << 16))", 8_000_000),
    "a million points": (
        "import nbmgpu\nfor n in range(500_000): nbmgpu.log(first=n, second=n)", 0),
}  # fmt: skip

MOST_MEMORY = 600
"""MiB by which a kernel may grow that shows a flood: a line of 50 MB is there several times."""


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood(kernel: Session, name: str) -> None:
    cell, nbytes = FLOODS[name]
    before, begun = memory(kernel.pid), time.monotonic()
    reply = kernel.ask(cell=cell, seconds=200)
    seconds = time.monotonic() - begun
    assert reply["error"] == ""
    run = Run(kernel.runs / reply["run"])
    logged = sum(run.log_path(rank).stat().st_size for rank in (0, 1))
    assert logged >= nbytes
    if name == "a million points":
        run.refresh()
        assert {len(curve.series()) for curve in run.view.curves.values()} == {500_000}
    found = next_run_problems(kernel)
    grown = memory(kernel.pid) - before
    print(f"\n{name}: {seconds:.1f} s, {logged / MIB:.1f} MiB logged, kernel +{grown:.0f} MiB")
    assert grown < MOST_MEMORY
    assert not found, found


def test_two_kernels_train_at_once(kernel: Session, tmp_path: Path) -> None:
    other = KernelSession(tmp_path / "other", NBMGPU_RUNS=str(kernel.runs))
    try:
        for session in (kernel, other):
            session.send({"cell": TRAIN, "options": {}})
        replies = [session.reply(120) for session in (kernel, other)]
        assert [(reply["error"], reply["steps"]) for reply in replies] == [("", ALL)] * 2
        assert replies[0]["run"] != replies[1]["run"]
        assert not left(kernel) + left(other)
    finally:
        other.close()


BACKGROUND = """
import copy, nbmgpu
sent = [{**globals(), **copy.deepcopy({"model": model, "optimizer": optimizer, "loader": loader})}
        for _ in range(20)]
runs = [nbmgpu.run(CELL, each, gpus=2, cpu=True, background=True) for each in sent]
for run in runs:
    nbmgpu.attach(run.id)
first = sent[0]["model"].weight
answer = [run.state for run in runs].count("finished"), all(
    (each["model"].weight - first).abs().max() < 1e-6 for each in sent)
model.load_state_dict(sent[0]["model"].state_dict())
"""


def test_twenty_background_runs_at_once(tmp_path: Path) -> None:
    session = PlainSession(tmp_path)
    try:
        names = {"CELL": repr(TRAIN)}
        reply = session.ask(source=BACKGROUND, names=names, seconds=200)
        assert (reply["error"], reply["value"], reply["steps"]) == ("", "(20, True)", ALL)
        found = next_run_problems(session)
        assert not found, found
    finally:
        session.close()


RUNS = """
import nbmgpu
for _ in range(COUNT):
    nbmgpu.run(CELL, {**globals()}, gpus=2, cpu=True)
"""


def resources(session: Session) -> dict[str, float]:
    """Return memory in MiB, descriptors, threads and children of kernel and fork server; files."""
    found: dict[str, float] = {}
    for name, pid in {"kernel": session.pid, "fork server": session.server()}.items():
        process = psutil.Process(pid)
        found[f"{name}: memory"] = round(memory(pid), 1)
        found[f"{name}: descriptors"] = process.num_fds()
        found[f"{name}: threads"] = process.num_threads()
        found[f"{name}: children"] = len(process.children())
    found["files in /dev/shm"] = len(list(session.shm.iterdir()))
    found["temporary files"] = len(list(session.tmp.iterdir()))
    return found


GROWTH = {"kernel: memory": 40.0, "fork server: memory": 15.0}
"""MiB that 180 runs may leave; the display of each stays in the kernel."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200_runs_leave_nothing(kernel: Session) -> None:
    names = {"CELL": repr(TRAIN), "COUNT": "20"}
    assert not kernel.ask(source=RUNS, names=names, seconds=200)["error"]
    wait_for(lambda: not left(kernel), 20, "the end of all ranks")
    before = resources(kernel)
    for _ in range(3):
        reply = kernel.ask(source=RUNS, names={**names, "COUNT": "60"}, seconds=200)
        assert not reply["error"]
    assert not left(kernel)
    after = resources(kernel)
    print("\n" + json.dumps({name: (before[name], after[name]) for name in before}, indent=1))
    for name, value in after.items():
        assert value <= before[name] + GROWTH.get(name, 0.0), name
