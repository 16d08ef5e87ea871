"""Why a run that has ended starts again; the runs are played, as most ends need a cluster."""

from __future__ import annotations

import pytest
from staged import Stage, StagedRun

from nbmgpu.kernel.resumed_options import reason_to_restart
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.events import Ended, Exited, Notice
from nbmgpu.runs.view import NODE_LOST

EVICTED = "Pod a-node-0 was evicted: The node was low on resource: memory"


@pytest.fixture
def run(staged: Stage) -> StagedRun:
    played = staged()
    played.start()
    return played


def reason(run: StagedRun, max_restarts: int = 2) -> str:
    run.launcher.emit(Ended, ending="failed")
    run.run.refresh()
    return reason_to_restart(RunOptions(gpus=2, cpu=True, max_restarts=max_restarts), run.run)


def test_the_node_of_the_launcher_is_lost(run: StagedRun) -> None:
    """Nobody has seen how its ranks ended; the reason is the node all the same."""
    run.launcher.emit(Notice, topic=NODE_LOST, text=EVICTED)
    assert EVICTED in reason(run)


def test_another_node_is_lost(run: StagedRun) -> None:
    run.launcher.emit(Exited, of_rank=0, code=1)
    run.launcher.emit(Notice, topic=NODE_LOST, text=EVICTED)
    assert EVICTED in reason(run)


def test_the_launcher_is_lost(run: StagedRun) -> None:
    assert "The launcher of run" in reason(run)


def test_a_rank_is_killed(run: StagedRun) -> None:
    run.launcher.emit(Exited, of_rank=1, code=-9)
    assert reason(run).startswith(f"Rank 1 of run {run.run.id} was ended by SIGKILL")


def test_no_restart_is_left(run: StagedRun) -> None:
    assert reason(run, max_restarts=0) == ""


def test_a_rank_exits_by_itself(run: StagedRun) -> None:
    run.launcher.emit(Exited, of_rank=1, code=3)
    assert reason(run) == ""
