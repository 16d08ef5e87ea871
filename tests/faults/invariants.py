"""What holds after every fault."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any

from cases import ALL, LARGE, Case, Expected
from fault_notebook import TRAIN
from sessions import Session, wait_for

from nbmgpu.report.failure_cause import cause
from nbmgpu.runs.checkpoint import DESCRIPTION
from nbmgpu.runs.run import Run

CLEAN_WITHIN = 10.0
"""Seconds until everything of a run is removed whose processes were killed."""

SAYS = {
    "before": r"from before the cell|had not been started|had not begun to run|The notebook is as",
    "trained": r"is back in the notebook",
}


def problems(
    session: Session,
    expected: Expected,
    reply: dict[str, Any],
    *,
    checkpoints: bool = False,
) -> list[str]:
    """Return what is wrong with the answer to a cell that was hit, in sentences."""
    found = []
    text, steps = reply["text"], reply["steps"]
    total = LARGE["samples"] // 8 if checkpoints else ALL
    if not re.fullmatch(expected.error, reply["error"]):
        found.append(f"the error is {reply['error']!r}, not {expected.error!r}: {text}")
    if not re.search(expected.words, text):
        found.append(f"the message does not contain {expected.words!r}: {text}")
    good = {"before": steps == 0, "trained": 0 < steps <= total, "all": steps == total}
    if not good[expected.state]:
        found.append(f"the weights are those after {steps} steps, not {expected.state!r}: {text}")
    actual = "before" if steps == 0 else "trained"
    if reply["error"] and not re.search(SAYS[actual], text):
        found.append(f"the weights are {actual!r}, which the message does not say: {text}")
    return found + left(session)


def left(session: Session) -> list[str]:
    """Return which processes and files are left, once the run has had time to end."""
    found = []
    deadline = time.monotonic() + CLEAN_WITHIN
    with contextlib.suppress(TimeoutError):
        wait_for(
            lambda: not _strangers(session) and not _files(session),
            deadline - time.monotonic(),
            "",
            0.05,
        )
    if strangers := _strangers(session):
        found.append(f"processes are left: {strangers}")
    if files := _files(session):
        found.append(f"files are left: {files}")
    return found


def _strangers(session: Session) -> list[str]:
    processes = session.processes()
    return [text for pid, text in processes.items() if pid not in session.allowed()]


def _files(session: Session) -> list[str]:
    data = [p for p in session.runs.glob("*/*") if re.match("bundle|result-|shadows", p.name)]
    sockets = [p for p in session.tmp.iterdir() if p.name.startswith(("nbmgpu-", "pymp-"))]
    return [str(p) for p in (*session.shm.iterdir(), *data, *sockets)]


def run_problems(
    run: Run | None, session: Session, *, reported: bool, interrupted: bool = False
) -> list[str]:
    """Return what another process cannot tell about a run that was hit.

    Args:
        run: the run, if there was one.
        session: where it ran.
        reported: whether it has not finished, so that it must have a cause.
        interrupted: whether its kernel was interrupted, so that it may have been stopped.
    """
    if run is None:
        return []
    reader = Run(run.folder)
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: reader.over, CLEAN_WITHIN, "")
    if not reader.over:
        return [f"run {reader.id} seems to be active: {reader.state}"]
    stopped = interrupted or "stopped" in reader.view.notices
    if not reported or reader.state == "finished" or (reader.state == "stopped" and stopped):
        return []
    shown = cause(reader, reader.state)
    if shown is None or not (shown.error or shown.explanation):
        return [f"the run's view gives no cause: {reader.state}, {shown}"]
    return []


def next_run_problems(session: Session) -> list[str]:
    """Return what is wrong with the next runs: a value, and training with the right numbers."""
    found = []
    value = session.ask(cell="answer = 6 * 7", again=True)
    if value["error"] or value["value"] != "42":
        found.append(f"the next run: {value}")
    training = session.ask(cell=TRAIN)
    if training["error"] or training["steps"] != ALL:
        found.append(f"the next training: {training}")
    return found + left(session)


def resume_problems(session: Session, run: Run) -> list[str]:
    """Return what is wrong with resuming from the newest complete checkpoint of ``run``."""
    steps = [int(p.parent.name[5:]) for p in run.folder.glob(f"checkpoints/step-*/{DESCRIPTION}")]
    if not steps:
        return ["there is no complete checkpoint"]
    options = {"resume": run.id}
    reply = session.ask(cell=TRAIN, options=options, **LARGE)
    found = []
    if reply["error"] or reply["steps"] != LARGE["samples"] // 8:
        found.append(f"resuming from step {max(steps)}: {reply}")
    if f"step {max(steps)} " not in str(reply["notices"].get("resumed")):
        found.append(f"not resumed from step {max(steps)}: {reply['notices']}")
    return found


def summary(case: Case, found: list[str]) -> str:
    """Return all problems as one text."""
    return f"{case.id}:\n" + "\n".join(f"- {each}" for each in found)


def remove_runs(session: Session) -> None:
    """Remove what is known of earlier runs, so that the next case finds only its own."""
    for path in Path(session.runs).iterdir():
        for part in ("checkpoints", "logs"):
            for file in sorted(path.glob(f"{part}/**/*"), reverse=True):
                with contextlib.suppress(OSError):
                    os.unlink(file) if file.is_file() else file.rmdir()
