"""Why a run failed: which rank, the exception, the line of the cell, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.runs.events import Failure, RunState
from nbmgpu.runs.failure import explain_signal, left_behind
from nbmgpu.runs.run import Run

from .error_hints import Hint, find_hint, split_remedy
from .text_format import TONES, coloured, exit_word, plain, state_word

CONTEXT_LINES = 3
"""Lines of the cell shown before and after the failing one."""


@dataclass(frozen=True)
class CellLine:
    """A line of the cell; ``failing`` marks the innermost one in the traceback."""

    number: int
    text: str
    failing: bool


@dataclass(frozen=True)
class OtherRank:
    """Another rank than the one that failed first: how it ended, and its exception if any."""

    rank: int
    word: str
    what: str
    traceback: str


@dataclass(frozen=True)
class Cause:
    """Why a run failed.

    Attributes:
        who: the rank, or empty.
        what: the exception, in one line.
        number, line: the line of the cell; 0 and empty if unknown.
        context: that line and those around it.
        why: the likely cause, or empty.
        remedy: what to try, or empty.
        traceback: with ANSI colors.
        others: the other ranks.
    """

    who: str
    what: str
    number: int
    line: str
    context: list[CellLine]
    why: str
    remedy: str
    traceback: str
    others: list[OtherRank]


def cause(run: Run, state: RunState) -> Cause | None:
    """Return why a run in ``state`` failed, or None.

    Exceptions that ranks raise while they are terminated are not the cause.
    """
    view = run.view
    if state == "stopped":
        return None
    if state != "timeout" and (failure := view.failure) and view.failed_rank == failure.rank:
        return _from_exception(run, failure)
    if state == "lost":
        why = "The kernel or the machine was restarted, or somebody killed the launcher."
        return _without_exception(
            run, "", "The launcher has disappeared, and has not recorded how the run ended", why
        )
    if view.ended is None or TONES.get(state) != "bad":
        return None
    failed_rank = view.failed_rank
    who = "" if failed_rank is None else f"rank {failed_rank}"
    what = plain(view.ended.detail)
    if state == "timeout":
        why = (
            f"The run took longer than --timeout {run.record.timeout:g}."
            if run.record.timeout
            else ""
        )
        return _without_exception(
            run, who, what or state_word(state), why, "a larger --timeout, or none"
        )
    exited = None if failed_rank is None else view.ranks[failed_rank].exited
    if what and exited is not None and exited.code < 0:  # the detail says why ranks were terminated
        return _without_exception(run, "", *split_remedy(what))
    if exited is None:
        return _without_exception(run, who, *split_remedy(what or state_word(state)))
    if exited.code < 0:
        name, why = explain_signal(-exited.code)
        why, remedy = split_remedy(why)
        return _without_exception(run, who, what or f"ended by {name}", why, remedy)
    why = "Code in it called os._exit, or exit() in compiled code." if exited.code else ""
    ended = f"exited with {exit_word(exited.code)} without an exception"
    return _without_exception(run, who, what or ended, why)


def _without_exception(run: Run, who: str, what: str, why: str = "", remedy: str = "") -> Cause:
    """Return the cause of a run without an exception."""
    return Cause(who, what, 0, "", [], _sentence(why), remedy, "", _others(run, who))


def _from_exception(run: Run, failure: Failure) -> Cause:
    lines = run.cell.splitlines()
    known = 0 < failure.line <= len(lines)
    message, remedy = split_remedy(plain(failure.message))
    what = f"{failure.type}: {message}" if message else failure.type
    why, way = split_remedy(left_behind(run, failure))
    likely = Hint(why, way) if why else find_hint(failure.type, failure.message)
    who = f"rank {failure.rank}"
    return Cause(
        who=who,
        what=plain(what),
        number=failure.line,
        line=plain(lines[failure.line - 1].strip()) if known else "",
        context=_context(lines, failure.line) if known else [],
        why=likely.why,
        remedy=remedy or likely.remedy,
        traceback=coloured("\n".join(failure.traceback)),
        others=_others(run, who),
    )


def _context(lines: list[str], number: int) -> list[CellLine]:
    first = max(1, number - CONTEXT_LINES)
    chosen = enumerate(lines[first - 1 : number + CONTEXT_LINES], start=first)
    return [CellLine(n, plain(text), n == number) for n, text in chosen]


def _others(run: Run, who: str) -> list[OtherRank]:
    found = []
    for rank, seen in enumerate(run.view.ranks):
        if f"rank {rank}" == who:
            continue
        failure, code = seen.failure, seen.exit_code
        what = plain(f"{failure.type}: {failure.message}") if failure else ""
        word: str = "failed as well" if failure else seen.state if code is None else "ended"
        word = f"{word} ({exit_word(code)})" if code else word
        trace = coloured("\n".join(failure.traceback)) if failure else ""
        found.append(OtherRank(rank, word, what, trace))
    return found


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
