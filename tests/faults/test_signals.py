"""Every process of a run is killed, asked to end, or suspended, in every phase of a run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cases import Case, Role, cases, expected
from driver import PATIENCE, Fault, MissedError
from fault_notebook import TRAIN
from invariants import (
    left,
    next_run_problems,
    problems,
    remove_runs,
    resume_problems,
    run_problems,
    summary,
)
from sessions import PlainSession, Session, wait_for

Sessions = Callable[[str], Session]

matrix = pytest.mark.matrix("nbmgpu/engines", "nbmgpu/kernel", "nbmgpu/rank", "nbmgpu/runs")

FAST = {
    "rank 0, KILL, all-reduce",
    "rank 1, TERM, barrier",
    "launcher, KILL, launch",
    "launcher, TERM, training",
}
"""The cases that ``make test`` runs; tests/kernel kills kernels and fork servers as well."""

ATTEMPTS = 4
"""A phase that lasts some milliseconds may be missed."""


def parameters(*roles: Role) -> list[object]:
    return [
        pytest.param(case, id=case.id, marks=() if case.id in FAST else matrix)
        for case in cases()
        if case.role in roles
    ]


@pytest.mark.parametrize("case", parameters("rank 0", "rank 1"))
def test_a_rank_is_hit(case: Case, sessions: Sessions) -> None:
    check(case, sessions)


@pytest.mark.parametrize("case", parameters("launcher", "fork server"))
def test_a_process_between_kernel_and_ranks_is_hit(case: Case, sessions: Sessions) -> None:
    check(case, sessions)


@pytest.mark.parametrize("case", parameters("kernel", "Jupyter server"))
def test_a_process_of_jupyter_is_hit(case: Case, sessions: Sessions) -> None:
    check(case, sessions)


@matrix
def test_a_kernel_is_killed_while_its_fork_server_imports_torch(tmp_path: Path) -> None:
    """The run is requested already: nobody is left who would want it."""
    session = PlainSession(tmp_path)
    try:
        session.send({"cell": TRAIN, "options": {}})
        server = session.server()
        os.kill(server, signal.SIGSTOP)
        run = session.new_run()
        time.sleep(0.2)
        os.kill(session.pid, signal.SIGKILL)
        os.kill(server, signal.SIGCONT)
        wait_for(lambda: not session.alive, 20, "the end of the kernel")
        found = left(session) + run_problems(run, session, reported=True)
        assert not found, found
        run.refresh()
        assert run.view.launcher is None, "the run was started"
    finally:
        session.close()


def check(case: Case, sessions: Sessions) -> None:
    """Let a fault happen, and check everything that must hold after it."""
    for _ in range(ATTEMPTS):
        session = sessions(case.role)
        fault = Fault(session, case)
        try:
            reply = fault.inject()
        except TimeoutError:
            session.close()
            raise
        except MissedError:
            session.reply(PATIENCE)
            continue
        break
    else:
        pytest.fail("the phase was missed")
    if reply is None:
        found = left(session)
        found += run_problems(fault.run, session, reported=True, interrupted=case.interrupts)
        session = sessions(case.role)
    else:
        checkpoints = case.phase == "checkpoint"
        found = problems(session, expected(case), reply, checkpoints=checkpoints)
        found += run_problems(fault.run, session, reported=bool(reply["error"]))
    if case.phase == "checkpoint" and not case.ends_notebook:
        found += resume_problems(session, fault.run)
    found += next_run_problems(session)
    remove_runs(session)
    assert not found, summary(case, found)
