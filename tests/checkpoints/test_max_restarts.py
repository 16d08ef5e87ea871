"""A run of which a rank is killed starts again from its newest checkpoint."""

from __future__ import annotations

import re

import pytest
from interrupted import LOOP, assert_same_curve, notebook, weights

import nbmgpu
from nbmgpu.errors import RankKilledError
from nbmgpu.runs.run_list import list_runs

KILLED = """
import os, signal

class Meter(Meter):
    def add(self, value):
        self.values.append(value)
        if len(self.values) == 30 and os.environ["RANK"] == "0" and not os.path.exists(MARK):
            open(MARK, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)

meter = Meter()
"""
KILLED_AFTER_A_CHECKPOINT = """
import os, signal
train = step

def step(x, y):
    if len(meter.values) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    train(x, y)
"""
OPTIONS = {"gpus": 2, "cpu": True, "exact": "never", "checkpoint_every": "7steps"}


def test_the_cell_goes_on_with_the_numbers_of_an_unbroken_run(tmp_path) -> None:
    unbroken = notebook()
    whole = nbmgpu.run(LOOP, unbroken, **OPTIONS)
    before = sum(1 for _ in list_runs())
    killed = notebook(KILLED + f"MARK = {str(tmp_path / 'mark')!r}")
    nbmgpu.run(LOOP, killed, max_restarts=2, **OPTIONS)
    assert_same_curve(nbmgpu.last_run, whole)
    assert float((weights(unbroken) - weights(killed)).abs().max()) == 0
    assert killed["meter"].values == pytest.approx(unbroken["meter"].values)
    assert killed["history"] == unbroken["history"]
    notices = nbmgpu.last_run.view.notices
    assert "Rank 0" in notices["restarted"].text
    assert "SIGKILL" in notices["restarted"].text
    assert "Restarts left: 1." in notices["restarted"].text
    # The checkpoint after step 28 may be incomplete at step 30.
    assert re.search("step (28|21) ", notices["resumed"].text)
    assert sum(1 for _ in list_runs()) == before + 2


def test_a_cell_without_restarts_left_raises() -> None:
    killed = notebook(KILLED.replace("and not os.path.exists(MARK)", "") + "MARK = os.devnull")
    before = sum(1 for _ in list_runs())
    with pytest.raises(RankKilledError):
        nbmgpu.run(LOOP, killed, max_restarts=1, **OPTIONS)
    assert sum(1 for _ in list_runs()) == before + 2


def test_a_run_that_hangs_starts_again(tmp_path) -> None:
    unbroken = notebook()
    nbmgpu.run(LOOP, unbroken, **OPTIONS)
    hung = notebook(
        KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "__import__('time').sleep(600)")
        + f"MARK = {str(tmp_path / 'mark')!r}"
    )
    restart = {"on_hang": "restart", "hang_after": 2, "max_restarts": 1}
    nbmgpu.run(LOOP, hung, **OPTIONS, **restart)
    assert float((weights(unbroken) - weights(hung)).abs().max()) == 0
    assert hung["meter"].values == pytest.approx(unbroken["meter"].values)
    assert "Rank 0 has not reached" in nbmgpu.last_run.view.notices["restarted"].text


def test_an_exception_is_no_reason_to_start_again() -> None:
    before = sum(1 for _ in list_runs())
    with pytest.raises(Exception, match=r"^$") as raised:
        nbmgpu.run(LOOP, notebook(fail_at=20), max_restarts=3, **OPTIONS)
    assert type(raised.value).__name__ == "Broken"
    assert sum(1 for _ in list_runs()) == before + 1


def test_all_points_up_to_a_checkpoint_are_on_the_disk_when_it_is_written() -> None:
    whole = nbmgpu.run(LOOP, notebook(), **OPTIONS)
    with pytest.raises(RankKilledError):
        nbmgpu.run(LOOP, notebook(KILLED_AFTER_A_CHECKPOINT), **OPTIONS)
    found, expected = (run.view.curves["loss"].until(7) for run in (nbmgpu.last_run, whole))
    assert found.weights == pytest.approx(expected.weights)
