"""Runs start again without their kernel, and also when not a rank, but the launcher is killed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from conftest import TRAINING
from kernels import Notebook, wait_for
from test_background_restarts import BEFORE, CELL, LINE, STATE
from test_detached_runs import is_running

from nbmgpu.runs import replacement
from nbmgpu.runs.run import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes end with their parents")


def begin(notebook: Notebook) -> Run:
    """Start the run in the background; its rank 1 waits to be killed."""
    notebook.run(f"{BEFORE}for each in (GO, MARK): each.unlink(missing_ok=True)\nos.mkfifo(GO)")
    notebook.run("losses = None")
    cell = notebook.send(f"%%mgpu {LINE} --detach\n{CELL}").ok()
    cell.until("step 8")
    return Run(notebook.runs / notebook.value("nbmgpu.last_run.id"))


def go_on(notebook: Notebook) -> None:
    (notebook.folder / "work" / "go").write_text("")


def assert_as_unbroken(notebook: Notebook) -> None:
    weights, losses = notebook.value(STATE)
    notebook.run(TRAINING)
    notebook.run(CELL)  # the mark is there
    assert notebook.value(STATE) == (pytest.approx(weights), pytest.approx(losses))


def test_a_run_without_its_kernel_starts_again(
    new_notebook: Callable[..., Notebook], tmp_path: Path
) -> None:
    runs = str(tmp_path / "runs")
    first = new_notebook("first", NBMGPU_RUNS=runs)
    failed = begin(first)
    kernel = psutil.Process(first.pid)
    kernel.kill()
    wait_for(lambda: not is_running(kernel), 10)
    go_on(first)
    wait_for(lambda: replacement.replacement_of(failed) is not None, 60)

    second = new_notebook("second", NBMGPU_RUNS=runs)
    second.run(f"{BEFORE}MARK.touch()\nlosses = None")
    assert "Results of run" in "".join(second.run(f"%mgpu attach {failed.id}").seen)
    run = replacement.newest_of(failed)
    assert (failed.state, run.state) == ("failed", "finished")
    assert "Restarts left: 0" in run.view.notices["restarted"].text
    assert "Resumed after step" in run.view.notices["resumed"].text
    steps, _ = run.view.curves["loss"].arrays()
    assert steps.tolist() == list(range(1, 13))
    for each in (failed, run):
        assert {"bundle", "result-0"}.isdisjoint(path.name for path in each.folder.iterdir())
    assert_as_unbroken(second)


def test_a_run_whose_kernel_is_busy_starts_again_and_comes_home(notebook: Notebook) -> None:
    failed = begin(notebook)
    busy = notebook.send("while not Path('over').exists(): time.sleep(0.1)")
    go_on(notebook)
    wait_for(lambda: replacement.replacement_of(failed) is not None, 60)
    run = replacement.newest_of(failed)
    wait_for(lambda: run.over, 60)
    (notebook.folder / "work" / "over").touch()
    busy.ok()
    wait_for(lambda: notebook.value("losses") is not None, 60)
    assert notebook.value("nbmgpu.last_run.id") == run.id
    assert {"bundle", "result-0"}.isdisjoint(path.name for path in run.folder.iterdir())
    assert_as_unbroken(notebook)


WAITS = """
import os
from pathlib import Path
MARK = Path("mark")
MARK.unlink(missing_ok=True)
losses = None

def wait_to_be_killed():
    if os.environ.get("RANK") == "1" and not MARK.exists():
        MARK.touch()
        time.sleep(100)
"""


@pytest.mark.parametrize("option", ["", "--detach"])
def test_a_run_whose_launcher_is_killed_starts_again(notebook: Notebook, option: str) -> None:
    notebook.run(WAITS)
    cell = notebook.send(f"%%mgpu {LINE} {option}\n{CELL}")
    wait_for((notebook.folder / "work" / "mark").exists, 60)
    failed = Run(max(notebook.runs.iterdir()))
    failed.refresh()
    assert failed.view.launcher is not None
    psutil.Process(failed.view.launcher.pid).kill()
    wait_for(lambda: notebook.value("losses") is not None, 60, cell)
    assert "Restarts left: 0" in notebook.value("nbmgpu.last_run.view.notices['restarted'].text")
    assert_as_unbroken(notebook)
