"""What the notebook raises when a run did not end well.

The exception is the rank's own, of its own type, shown with the rank's traceback.
A rank that died without one is explained by the signal that ended it.
"""

from __future__ import annotations

import base64
import os
import pickle
import re
import signal
from typing import TypeVar

from nbmgpu.errors import (
    LOST_SHARDS,
    HangError,
    LaunchError,
    RankError,
    RankKilledError,
    RunTimeoutError,
    step_mismatch_message,
)
from nbmgpu.system.ownership import require_own

from .events import Failure, Hang
from .folder import post_mortem_path
from .hang_text import hang_report
from .preallocation import disk_is_full
from .run import Run
from .view import NODE_LOST, RunView

ErrorT = TypeVar("ErrorT", bound=BaseException)

EXPLANATIONS = {
    signal.SIGKILL: (
        "it was killed, probably because the machine ran out of memory. "
        "Try: fewer ranks, a smaller batch, or less data in the cell"
    ),
    signal.SIGSEGV: "it crashed in compiled code (segmentation fault); see its log",
    signal.SIGABRT: "compiled code gave up (abort); see its log",
    signal.SIGBUS: (
        "it could not get memory that it had mapped; memory or /dev/shm is full. "
        "Try: fewer DataLoader workers, or less data in the cell"
    ),
    signal.SIGFPE: "it crashed in compiled code (arithmetic error); see its log",
    signal.SIGILL: "it met an instruction that this processor does not have; see its log",
    signal.SIGTERM: "somebody or a job scheduler asked it to end",
}
INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a rank that was interrupted before it had begun to run the cell, as in a shell."""

UNREPORTED = os.EX_IOERR
"""Exit code of a rank whose last events did not fit on a full disk."""

NO_SPACE = (
    "nothing can be written to its folder, as its disk is full, or your quota is used up. Free "
    "some space there, or set NBMGPU_RUNS to another folder"
)

TAIL = 15
"""Lines of a log that go into a message."""

LOST_CONNECTION = r"Connection closed by peer|Connection reset by peer"
"""Messages of gloo if another rank has ended."""

LOST_PEER = rf"{LOST_CONNECTION}|NCCL"
"""The same, and that of NCCL."""

SHAPE_MISMATCH = "Received data size doesn't match expected size"
"""Message of gloo if a rank sends more than the other one expects; then it aborts."""

DIFFERENT_SHAPES = (
    "ranks have run the same collective with tensors of different shapes, which gloo answers with "
    "abort. Try: tensors of the same shape on all ranks: pad them"
)

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class RankTraceback(Exception):
    """The cause of an exception that was raised in a rank: its traceback there, as plain text."""

    def __init__(self, text: str) -> None:
        """Hold the formatted traceback."""
        super().__init__(COLOURS.sub("", text))

    def __str__(self) -> str:
        """Return the traceback, below an empty line."""
        return "\n" + str(self.args[0])


def exception_of(run: Run) -> BaseException | None:
    """Return the exception that a run which is over raises; None if it finished."""
    state, view = run.state, run.view
    if state == "finished":
        return None
    if state == "stopped":
        what = f"run {run.id} was stopped; {_what_is_back(run)}{_where_ranks_stood(run)}"
        return without_traceback(KeyboardInterrupt(what))
    if state == "timeout":
        return without_traceback(
            RunTimeoutError(
                f"Run {run.id} took longer than --timeout {run.record.options.timeout:g}: "
                f"it was stopped; {_what_is_back(run)}{_where_ranks_stood(run)}"
            )
        )
    if view.hang is not None and view.hang.stops:
        return without_traceback(HangError(_hang(run, view.hang)))
    if lost := lost_node(view):
        what = f"{lost}.\n{_sentence(_what_is_back(run))}\nFolder: {run.folder}"
        return without_traceback(RankKilledError(what))
    if view.ended and view.ended.detail:
        return without_traceback(LaunchError(_unsupervised(run, view.ended.detail)))
    if view.exited_silently is not None:
        return without_traceback(_silent(run, view.exited_silently))
    if view.failure is not None:
        return _raised(run, view.failure)
    what = f"Run {run.id} ended without a report ({state}): {_why_without_report(run)}."
    return without_traceback(LaunchError(_unsupervised(run, what)))


def lost_node(view: RunView) -> str:
    """Return which node was lost, without a full stop, if that is why the run has failed.

    It is not the reason where a rank has raised an exception, unless that is about the connection
    that was lost with the node.
    """
    failure, lost = view.failure, view.notices.get(NODE_LOST)
    if lost is None or (failure is not None and not re.search(LOST_PEER, failure.message)):
        return ""
    return lost.text


def _why_without_report(run: Run) -> str:
    return NO_SPACE if disk_is_full(run.folder) else "its launcher was killed or has failed"


def _unsupervised(run: Run, what: str) -> str:
    """Return the message about a run of which the launcher could not observe the end."""
    log = _launcher_log(run)
    lines = [what, _sentence(_what_is_back(run)), f"Folder: {run.folder}"]
    return "\n".join([*lines, *([] if log in what else [log])])


def _what_is_back(run: Run) -> str:
    if 0 in run.results and LOST_SHARDS in run.view.notices:
        return (
            "parameters and optimizer states are those from before the cell, as parts of them "
            "were on other ranks; other variables are back in the notebook"
        )
    if 0 in run.results:
        return "what was trained so far is back in the notebook"
    if run.view.ranks[0].process is None:
        return "its ranks had not been started"
    if run.view.ranks[0].state in ("starting", "loading"):
        return "rank 0 had not begun to run the cell"
    return "rank 0 ended before it could send its results: variables are those from before the cell"


def _hang(run: Run, hang: Hang) -> str:
    """Return the report of the hang that has ended ``run``."""
    way = f"Try: {hang.remedy}." if hang.remedy else ""
    ended = f"--on-hang stop has ended the run; {_what_is_back(run)}."
    report = hang_report(hang)
    return "\n".join(filter(None, [report, way, ended]))


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _where_ranks_stood(run: Run) -> str:
    places: dict[str, list[str]] = {}
    for rank, seen in enumerate(run.view.ranks):
        if seen.state == "stopped" and seen.detail:
            places.setdefault(seen.detail, []).append(str(rank))
    lines = [
        f"Rank {ranks[0]} was at {place}" if len(ranks) == 1 else
        f"Ranks {', '.join(ranks)} were at {place}"
        for place, ranks in places.items()
    ]  # fmt: skip
    return "".join(f"\n{line}" for line in lines)


def stopped_before(what: str) -> KeyboardInterrupt:
    """Return the interrupt of a cell that was stopped before ``what``, a clause."""
    return without_traceback(KeyboardInterrupt(f"the cell was stopped before {what}"))


def without_traceback(error: ErrorT) -> ErrorT:
    """Let IPython show only the message, as the notebook's frames are not the cause."""
    lines = [f"{type(error).__name__}: {error}"]
    error._render_traceback_ = lambda *_: lines  # type: ignore[attr-defined]
    return error


def _silent(run: Run, rank: int) -> BaseException:
    """Return the error for a rank that ended without reporting an exception."""
    who = run.rank_name(rank)
    code = run.view.ranks[rank].exit_code or 0
    if run.view.ranks[rank].process is None:
        how = "was not started by its node" if code < 0 else f"did not start (exit code {code})"
        return LaunchError(f"{who} {how}.\n{_launcher_log(run)}")
    if code == UNREPORTED:
        what = f"{who} could not report its end: {NO_SPACE}."
        return LaunchError(_unsupervised(run, what))
    sentence = f"\n{_sentence(_what_is_back(run))}"
    has_begun = run.view.ranks[rank].state not in ("starting", "loading")
    if run.view.ranks[rank].state == "stopped" or (code == INTERRUPTED and not has_begun):
        by = "by its cell or by a signal from outside" if has_begun else "by a signal from outside"
        return KeyboardInterrupt(f"{who} was interrupted, {by}.{sentence}")
    tail = _tail(run.log(rank))
    log = run.log_path(rank)
    end = f"{sentence}\n" + (f"The end of its log, {log}:\n{tail}" if tail else f"Its log: {log}")
    if code < 0:
        name, why = explain_end(run, rank, -code)
        return RankKilledError(f"{who} was ended by {name}: {why}.{end}")
    return RankError(
        f"{who} exited with code {code} without an exception: something in it called "
        f"os._exit, or exit in compiled code.{end}"
    )


def explain_end(run: Run, rank: int, number: int) -> tuple[str, str]:
    """Return the name of the signal that ended ``rank``, and the most likely cause."""
    name, why = explain_signal(number)
    if number == signal.SIGKILL and (lost := run.view.notices.get(NODE_LOST)) is not None:
        return name, lost.text
    if number == signal.SIGABRT and SHAPE_MISMATCH in run.log(rank):
        return name, DIFFERENT_SHAPES
    return name, why


def explain_signal(number: int) -> tuple[str, str]:
    """Return the name of a signal, and its most likely cause."""
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"signal {number}", "see its log"
    return known.name, EXPLANATIONS.get(known, "see its log")


def _raised(run: Run, failure: Failure) -> BaseException:
    error = unpickled_error(run, failure) or RankError(f"{failure.type}: {failure.message}")
    where = f"{run.rank_name(failure.rank)} raised {failure.type}"
    if 0 < failure.line <= len(cell := run.cell.splitlines()):
        where += f", line {failure.line} of the cell: {cell[failure.line - 1].strip()}"
    lines = [where]
    if post_mortem_path(run.folder, failure.rank).exists():
        lines.append(f"What its variables were: %mgpu debug {run.id}")
    lines += [*failure.traceback, *filter(None, [left_behind(run, failure)])]
    if 0 not in run.results:
        lines.append(_sentence(_what_is_back(run)))
    if not isinstance(error, SystemExit):  # IPython shows no cause of it; 8.18 fails at one
        error.__cause__ = RankTraceback("\n".join(lines))
    error._render_traceback_ = lambda *_: lines  # type: ignore[attr-defined]
    return error


def left_behind(run: Run, failure: Failure) -> str:
    """Say so where a rank waited for others that had come to the end of the cell; else nothing."""
    through = [rank for rank, seen in enumerate(run.view.ranks) if seen.step_digest]
    if not through or not re.search(LOST_CONNECTION, failure.message):
        return ""
    where = f" in line {failure.line}" if failure.line else ""
    return step_mismatch_message(f"Rank {through[0]}", f"rank {failure.rank}", where)


def unpickled_error(run: Run, failure: Failure) -> BaseException | None:
    """Return the exception that a rank has raised; None if it cannot be unpickled here."""
    if not failure.pickled:
        return None
    try:
        require_own(run.events_path(f"rank-{failure.rank}"))
        error = pickle.loads(base64.b64decode(failure.pickled))
    except Exception:
        return None  # its class cannot be imported here, or others may have written the events
    return error if isinstance(error, BaseException) else None


def _launcher_log(run: Run) -> str:
    logs = [run.folder / "logs" / f"{name}.log" for name in ("torchrun", "launcher")]
    texts = [log.read_text(errors="replace") for log in logs if log.exists()]
    return _tail("\n".join([*texts, run.log(0)]))


CRASH = "Fatal Python error"
"""How Python's own report of a crash in compiled code begins; the innermost lines come first."""


def _tail(text: str) -> str:
    if CRASH in text:
        report = text[text.rindex(CRASH) :].strip()
        return "\n".join(report.splitlines()[:TAIL])
    return "\n".join(text.strip().splitlines()[-TAIL:])
