"""Why a run did not end well: who, what, where in the cell, and the way out."""

from __future__ import annotations

from dataclasses import dataclass

from nbmgpu.runs.events import Failure, RunState
from nbmgpu.runs.failure import explain_signal, left_behind
from nbmgpu.runs.run import Run

from .error_hints import Diagnosis, diagnose, split_remedy
from .text_format import TONES, coloured, exit_word, plain, state_word

NEIGHBOURS = 3
"""Lines of the cell shown before and after the one that failed."""


@dataclass(frozen=True)
class CellLine:
    """A line of the cell; ``failing`` where the exception passed last."""

    number: int
    text: str
    failing: bool


@dataclass(frozen=True)
class OtherRank:
    """A rank besides the one that failed first: how it ended, and its own exception if any."""

    rank: int
    word: str
    what: str
    traceback: str


@dataclass(frozen=True)
class Cause:
    """Why a run failed.

    ``who`` is the rank, or empty; ``number`` and ``line`` are the cell's own line (0 when
    unknown), and ``context`` has it among its neighbours.  ``why`` is the likely cause and
    ``remedy`` what to try, as far as they are known.  Tracebacks are ANSI coloured.
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
    """Return why the run, which is in ``state``, did not end well, or None.

    What ranks raise while they are being ended came of that, and is not the cause.
    """
    view = run.view
    if state == "stopped":
        return None
    if state != "timeout" and (failure := view.failure) and view.culprit == failure.rank:
        return _raised(run, failure)
    if state == "lost":
        why = "The kernel or the machine was restarted, or somebody killed the launcher."
        return _silent(run, "", "The launcher is gone and has not said how the run ended", why)
    if view.ended is None or TONES.get(state) != "bad":
        return None
    culprit = view.culprit
    who = "" if culprit is None else f"rank {culprit}"
    what = plain(view.ended.detail)
    if state == "timeout":
        why = f"It took longer than --timeout {run.record.timeout:g}." if run.record.timeout else ""
        return _silent(run, who, what or state_word(state), why, "a larger --timeout, or none")
    exited = None if culprit is None else view.ranks[culprit].exited
    if what and exited is not None and exited.code < 0:  # ranks were ended for what is said
        return _silent(run, "", *split_remedy(what))
    if exited is None:
        return _silent(run, who, *split_remedy(what or state_word(state)))
    if exited.code < 0:
        name, why = explain_signal(-exited.code)
        why, remedy = split_remedy(why)
        return _silent(run, who, what or f"ended by {name}", why, remedy)
    why = "Something in it called os._exit, or exit in compiled code." if exited.code else ""
    ended = f"left with {exit_word(exited.code)} and without an exception"
    return _silent(run, who, what or ended, why)


def _silent(run: Run, who: str, what: str, why: str = "", remedy: str = "") -> Cause:
    """Return the cause of a run that has no exception to show."""
    return Cause(who, what, 0, "", [], _sentence(why), remedy, "", _others(run, who))


def _raised(run: Run, failure: Failure) -> Cause:
    lines = run.cell.splitlines()
    known = 0 < failure.line <= len(lines)
    message, remedy = split_remedy(plain(failure.message))
    what = f"{failure.type}: {message}" if message else failure.type
    why, way = split_remedy(left_behind(run, failure))
    likely = Diagnosis(why, way) if why else diagnose(failure.type, failure.message)
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
    first = max(1, number - NEIGHBOURS)
    chosen = enumerate(lines[first - 1 : number + NEIGHBOURS], start=first)
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
