"""A run with ``--detach`` outlives its kernel, and a later kernel gets its results."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from kernels import Notebook, wait_for

from nbmgpu.runs.run import Run
from nbmgpu.server.run_list import RunListReader

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parents")

CELL = """
losses = []
for epoch in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        history.append(len(losses))
        while not GO.exists():
            time.sleep(0.02)
"""
ENDLESS = 'print("ready", flush=True)\nwhile True: time.sleep(0.02)'
WORKERS = f"""
import subprocess
from multiprocessing import shared_memory
batches = iter(DataLoader(TensorDataset(torch.zeros(10_000, 1)), num_workers=1))
next(batches)
block = shared_memory.SharedMemory(create=True, size=100)
far = subprocess.Popen(["setsid", "sleep", "1000"])
{ENDLESS}
"""
STATE = "model.weight.flatten().tolist(), losses, history"
COMMAND = Path(sys.executable).with_name("nbmgpu")


class Detached:
    """A detached run of a kernel, its processes, and what there was before."""

    def __init__(self, notebook: Notebook, cell: str, line: str = "") -> None:
        self.notebook = notebook
        self.shm = set(os.listdir("/dev/shm"))
        self.cell = notebook.run(f"%%mgpu --gpus 2 --cpu --detach {line}\n{cell}", 120)
        self.run = Run(notebook.runs / notebook.value("nbmgpu.last_run.id"))
        wait_for(self._is_running, 60, lambda: self.run.log(0))
        assert self.run.view.launcher is not None
        self.sockets = (self.run.folder / "sockets").readlink()
        self.launcher = psutil.Process(self.run.view.launcher.pid)
        self.guard = self.launcher.parent()
        self.processes = [self.guard, self.launcher, *self.launcher.children(recursive=True)]

    def _is_running(self) -> bool:
        self.run.refresh()
        return all(rank.state == "running" for rank in self.run.view.ranks)

    def kill_kernel(self) -> None:
        kernel, server = psutil.Process(self.notebook.pid), self.notebook.fork_server()
        os.kill(self.notebook.pid, signal.SIGKILL)
        wait_for(lambda: not (is_running(kernel) or is_running(server)), 10)

    def assert_nothing_left(self) -> None:
        wait_for(lambda: not any(map(is_running, self.processes)), 10, self.processes)
        assert set(os.listdir("/dev/shm")) <= self.shm
        assert not self.sockets.exists()
        assert {"sockets", "shadows"}.isdisjoint(self.files())

    def files(self) -> set[str]:
        return {path.name for path in self.run.folder.iterdir()}


def is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def terminal(runs: Path, *words: str) -> str:
    environment = os.environ | {"NBMGPU_RUNS": str(runs)}
    done = subprocess.run(
        [COMMAND, *words], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_killed_kernels_run_goes_on_and_a_later_kernel_gets_its_results(
    new_notebook, runs, tmp_path, monkeypatch
):
    go = tmp_path / "go"
    setup = f"from pathlib import Path\nGO, EPOCHS, history = Path({str(go)!r}), 3, []"
    first = new_notebook("first", NBMGPU_RUNS=str(runs))
    first.run(setup)
    detached = Detached(first, CELL)
    detached.kill_kernel()
    assert all(is_running(process) for process in detached.processes)
    assert detached.run.state == "running"
    assert "running" in terminal(runs, "runs")
    monkeypatch.setenv("NBMGPU_RUNS", str(runs))
    (line,) = RunListReader().newest().runs
    assert (line.status.state, line.kernel.alive) == ("running", False)

    second = new_notebook("second", NBMGPU_RUNS=str(runs))
    second.run(f"{setup}\nown, kept = model, history")
    attached = second.send(f"%mgpu attach {detached.run.id}")
    go.touch()
    told = "".join(attached.ok().seen)
    assert re.search(r"updated in place: .*`model`, `history`; new: .*`losses`", told)
    same = "optimizer.param_groups[0]['params'][0] is model.weight"
    assert second.value(f"own is model, kept is history, {same}") == (True, True, True)
    results = second.value(STATE)
    detached.assert_nothing_left()
    assert {"bundle", "result-0", "result-1"}.isdisjoint(detached.files())
    assert detached.run.state == "finished"

    third = new_notebook("third", NBMGPU_RUNS=str(runs))
    third.run(setup)
    third.run(CELL)
    weights, losses, history = third.value(STATE)
    assert results[0] == pytest.approx(weights, abs=1e-6)
    assert results[1] == pytest.approx(losses, abs=1e-6)
    assert results[2] == history


def test_a_restarted_kernel_gets_the_results_of_its_run(new_notebook, tmp_path):
    go = tmp_path / "go"
    setup = f"from pathlib import Path\nGO, EPOCHS, history = Path({str(go)!r}), 1, []"
    notebook = new_notebook()
    notebook.run(setup)
    detached = Detached(notebook, CELL)
    kernel = psutil.Process(notebook.pid)
    notebook.interrupt()  # as a front end does first
    notebook.manager.request_shutdown()
    wait_for(lambda: not is_running(kernel), 10)
    assert detached.run.state == "running"
    again = new_notebook("again", NBMGPU_RUNS=str(notebook.runs))
    again.run(setup)
    go.touch()
    assert "Results of run" in "".join(again.run("%mgpu attach").seen)
    assert again.value("history") == [1, 2, 3]
    detached.assert_nothing_left()


def test_its_own_kernel_writes_the_results_back(notebook, tmp_path):
    go = tmp_path / "go"
    notebook.run(f"from pathlib import Path\nGO, EPOCHS, history = Path({str(go)!r}), 1, []")
    detached = Detached(notebook, CELL)
    assert "24 h at most" in notebook.run("%mgpu show").seen[0]
    attached = notebook.send("%mgpu attach")
    wait_for(lambda: attached.outputs, 10, attached)
    notebook.interrupt()
    attached.wait()
    assert attached.reply["status"] == "error"
    assert detached.run.state == "running", "an interrupt ends the waiting alone"
    go.touch()
    wait_for(lambda: notebook.value("history") == [1, 2, 3], 30)
    detached.assert_nothing_left()
    wait_for(lambda: {"bundle", "result-0"}.isdisjoint(detached.files()), 10)


def test_it_is_stopped_from_the_command_line(new_notebook, runs):
    detached = Detached(new_notebook(NBMGPU_RUNS=str(runs)), f"n = 3\n{WORKERS}")
    detached.processes += detached.launcher.children(recursive=True)
    detached.kill_kernel()
    assert terminal(runs, "stop", detached.run.id) == (
        f"Run {detached.run.id} of another kernel: stopped.\n"
    )
    detached.assert_nothing_left()
    later = new_notebook("later", NBMGPU_RUNS=str(runs))
    later.run("%mgpu attach")
    assert later.value("n") == 3, "as after Stop in its own notebook"


def test_its_time_limit_ends_it(new_notebook):
    detached = Detached(new_notebook(), ENDLESS, "--timeout 4")
    detached.kill_kernel()
    assert detached.run.wait(60) == "timeout"
    detached.assert_nothing_left()


def test_what_a_failed_run_was_sent_is_removed(new_notebook):
    detached = Detached(new_notebook(), f"model\n{ENDLESS}")
    detached.kill_kernel()
    assert "bundle" in detached.files()
    process = detached.run.view.ranks[0].process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert detached.run.wait(30) == "failed"
    detached.assert_nothing_left()
    assert {"bundle", "result-0", "result-1"}.isdisjoint(detached.files())


@pytest.mark.parametrize(
    ("killed", "line"), [("launcher", ""), ("guard", ""), ("guard", "--max-restarts 1")]
)
def test_a_killed_launcher_leaves_nothing(new_notebook, killed, line):
    detached = Detached(new_notebook(), WORKERS, line)
    detached.processes += detached.launcher.children(recursive=True)
    detached.kill_kernel()
    getattr(detached, killed).kill()
    wait_for(lambda: detached.run.state == "failed", 30)
    detached.assert_nothing_left()
    wait_for(lambda: {"bundle", "result-0"}.isdisjoint(detached.files()), 10)


def test_a_run_whose_kernel_ends_before_it_has_sent_the_data_fails(new_notebook):
    notebook = new_notebook()
    notebook.run(
        "from nbmgpu.serialization.bundle import Bundle\n"
        "def write(self, storage, owner):\n    open('writing', 'w').close()\n    time.sleep(1000)\n"
        "Bundle.write = write"
    )
    notebook.send("%%mgpu --detach --gpus 2 --cpu\nmodel")
    wait_for((notebook.folder / "work" / "writing").exists, 60)
    (folder,) = notebook.runs.iterdir()
    run = Run(folder)
    wait_for(lambda: run.refresh() or all(rank.process for rank in run.view.ranks), 60)
    os.kill(notebook.pid, signal.SIGKILL)
    assert run.wait(30) == "failed"
    assert run.view.ended is not None
    assert "before it had sent the cell's data" in run.view.ended.detail
