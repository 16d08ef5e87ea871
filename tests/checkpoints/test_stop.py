"""A run that is stopped writes a checkpoint first, and goes on there with the same numbers."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from interrupted import LOOP, assert_same_curve, notebook, weights

import nbmgpu
from nbmgpu.errors import LaunchError, RunTimeoutError
from nbmgpu.runs.run import Run
from nbmgpu.runs.run_list import list_runs

SLOW = LOOP.replace("    history", "        __import__('time').sleep(SECONDS)\n    history")
OPTIONS = {"gpus": 2, "cpu": True, "exact": "never", "checkpoint_every": "1000steps"}


def wait_until_it_trains(known: set[str], step: int = 12) -> Run:
    """Return the run that is not ``known``, once rank 0 has come to ``step``."""
    while True:
        for run in list_runs():
            if run.id not in known:
                run.refresh()
                if any(len(curve) >= step for curve in run.view.curves.values()):
                    return run
        time.sleep(0.05)


def stop_when_it_trains(known: set[str], step: int = 12) -> None:
    """Stop the run that is not ``known``, once rank 0 has come to ``step``."""
    wait_until_it_trains(known, step).stop()


def end_when_it_trains(known: set[str]) -> None:
    """Ask the launcher of the run that is not ``known`` to end."""
    launcher = wait_until_it_trains(known).view.launcher
    assert launcher is not None
    os.kill(launcher.pid, signal.SIGTERM)


def run_until_it_is_stopped(namespace: dict[str, Any], **options: Any) -> Run:
    """Run a slow cell, and stop it in the middle."""
    namespace["SECONDS"] = 0.1
    known = {run.id for run in list_runs()}
    threading.Thread(target=stop_when_it_trains, args=[known], daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.run(SLOW, namespace, **OPTIONS | options)
    return nbmgpu.last_run


@pytest.mark.parametrize("options", [{}, {"checkpoint_every": "epoch"}])
def test_a_stopped_run_goes_on_where_it_was(options, capsys) -> None:
    unbroken = notebook("SECONDS = 0")
    nbmgpu.run(SLOW, unbroken, **OPTIONS)
    unbroken_run = nbmgpu.last_run
    stopped = run_until_it_is_stopped(notebook(), **options)
    summary = capsys.readouterr().out
    assert stopped.state == "stopped"
    (*_, last) = stopped.checkpoints
    assert 12 <= last.step < 39
    assert "%%mgpu --resume" in summary
    assert "Before it stops" not in summary
    resumed = notebook("SECONDS = 0")
    nbmgpu.run(SLOW, resumed, resume=True, **OPTIONS)
    assert float((weights(unbroken) - weights(resumed)).abs().max()) == 0
    assert resumed["meter"].values == unbroken["meter"].values
    assert_same_curve(nbmgpu.last_run, unbroken_run)


def test_a_run_whose_launcher_is_asked_to_end_goes_on_where_it_was(capsys) -> None:
    """As by a job scheduler that needs the machine for something else."""
    unbroken = notebook("SECONDS = 0")
    nbmgpu.run(SLOW, unbroken, **OPTIONS)
    ended = notebook("SECONDS = 0.1")
    known = {run.id for run in list_runs()}
    threading.Thread(target=end_when_it_trains, args=[known], daemon=True).start()
    with pytest.raises(LaunchError, match=r"SIGTERM[\s\S]*trained so far is back"):
        nbmgpu.run(SLOW, ended, **OPTIONS)
    (*_, last) = nbmgpu.last_run.checkpoints
    assert 12 <= last.step <= len(ended["meter"].values) < 39
    assert "failure  The run's launcher was ended by SIGTERM" in capsys.readouterr().out
    resumed = notebook("SECONDS = 0")
    nbmgpu.run(SLOW, resumed, resume=True, **OPTIONS)
    assert float((weights(unbroken) - weights(resumed)).abs().max()) == 0
    assert resumed["meter"].values == unbroken["meter"].values


def test_a_run_whose_time_is_over_has_a_checkpoint() -> None:
    with pytest.raises(RunTimeoutError):
        nbmgpu.run(SLOW, notebook("SECONDS = 0.3"), timeout=3, **OPTIONS)
    assert nbmgpu.last_run.checkpoints


def test_a_second_stop_does_not_wait_for_a_checkpoint() -> None:
    """The cell stands in an iteration for longer than a checkpoint is waited for."""
    cell = LOOP.replace("    history", "        stand(i)\n    history")
    namespace = notebook("import time\ndef stand(i):\n    time.sleep(60 if i == 9 else 0.1)")
    known = {run.id for run in list_runs()}
    asked: list[float] = []

    def stop_twice() -> None:
        stop_when_it_trains(known, step=8)
        time.sleep(2)
        asked.append(time.monotonic())
        list_runs()[0].stop(force=True)

    threading.Thread(target=stop_twice, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        nbmgpu.run(cell, namespace, **OPTIONS)
    assert time.monotonic() - asked[0] < 5
    assert not nbmgpu.last_run.checkpoints
