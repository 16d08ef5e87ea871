"""Every process of a run is killed, asked to end, or suspended, in every phase of a run."""

from __future__ import annotations

import pytest
from cases import Case, cases, expected
from driver import PATIENCE, Fault, MissedError
from invariants import (
    left,
    next_run_problems,
    problems,
    remove_runs,
    resume_problems,
    run_problems,
    summary,
)

matrix = pytest.mark.matrix("nbmgpu/engines", "nbmgpu/kernel", "nbmgpu/rank", "nbmgpu/runs")

FAST = {
    "rank 0, KILL, all-reduce",
    "rank 1, KILL, training",
    "rank 1, TERM, barrier",
    "rank 1, STOP, all-reduce",
    "rank 0, KILL, checkpoint",
    "rank 0, KILL, sending",
    "rank 1, KILL, join",
    "launcher, KILL, training",
    "launcher, TERM, launch",
    "fork server, KILL, training",
    "kernel, KILL, all-reduce",
}
"""The cases that ``make test`` runs."""

ATTEMPTS = 4
"""A phase that lasts some milliseconds may be missed."""


def parameters() -> list[object]:
    return [
        pytest.param(case, id=case.id, marks=() if case.id in FAST else matrix) for case in cases()
    ]


@pytest.mark.parametrize("case", parameters())
def test_a_fault(case: Case, sessions) -> None:
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
        found += run_problems(fault.run, session, reported=True)
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
