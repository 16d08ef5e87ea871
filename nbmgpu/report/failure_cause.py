"""Why a run failed: which rank, the exception, the line of the cell, and a remedy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from nbmgpu.errors import split_remedy
from nbmgpu.runs import reference
from nbmgpu.runs.events import Failure, Hang, RunState
from nbmgpu.runs.failure import explain_end, left_behind, lost_node
from nbmgpu.runs.hang_text import hang_headline, hang_report
from nbmgpu.runs.run import Run

from .error_hints import Hint, find_hint
from .text_format import NOT_STARTED, TONES, coloured, exit_word, plain, state_word

CONTEXT_LINES = 3
"""Lines of the cell shown before and after the failing one."""


MANY_RANKS = 16
"""Other ranks above which those that ended alike are described once."""


@dataclass(frozen=True)
class CellLine:
    """A line of the cell; ``failing`` marks the innermost one in the traceback."""

    number: int
    text: str
    failing: bool


@dataclass(frozen=True)
class OtherRank:
    """Another rank than the one that failed first: how it ended, and its exception if any.

    ``alike`` counts further ranks that ended with the same exception, or all without one.
    """

    rank: int
    label: str
    error: str
    traceback: str
    alike: int = 0


@dataclass(frozen=True)
class Cause:
    """Why a run failed.

    Attributes:
        origin: the rank that failed, such as ``rank 1`` or ``rank 1 on node2``; may be empty.
        error: the exception, or how the rank ended, in one line.
        number, line: the line of the cell; 0 and empty if unknown.
        context: that line and those around it.
        explanation: the likely cause, or empty.
        remedy: what to try, or empty.
        traceback: with ANSI colors.
        others: the other ranks.
    """

    origin: str
    error: str
    number: int
    line: str
    context: list[CellLine]
    explanation: str
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
    if state == "failed" and view.hang is not None and view.hang.stops:
        return _from_hang(run, view.hang)
    if state == "failed" and (lost := lost_node(run.view)):
        return _without_exception(run, None, plain(_sentence(lost)))
    if state != "timeout" and (failure := view.failure) and view.failed_rank == failure.rank:
        return _from_exception(run, failure)
    if state == "lost":
        explanation = "The kernel or the machine was restarted, or somebody killed the launcher."
        return _without_exception(
            run,
            None,
            "The launcher has disappeared, and has not recorded how the run ended",
            explanation,
        )
    if view.ended is None or TONES.get(state) != "bad":
        return None
    failed_rank = view.failed_rank
    error = plain(view.ended.detail)
    if state == "timeout":
        explanation = (
            f"The run took longer than --timeout {run.record.options.timeout:g}."
            if run.record.options.timeout
            else ""
        )
        return _without_exception(
            run, failed_rank, error or state_word(state), explanation, "a larger --timeout, or none"
        )
    exited = None if failed_rank is None else view.ranks[failed_rank].exited
    if error and exited is not None and (exited.code < 0 or exited.terminating):
        # The detail says why ranks were terminated.
        return _without_exception(run, None, *split_remedy(error))
    if exited is None:
        return _without_exception(run, failed_rank, *split_remedy(error or state_word(state)))
    if failed_rank is not None and view.ranks[failed_rank].never_started:
        return _without_exception(run, failed_rank, error or "was not started by its node")
    if exited.code < 0:
        name, explanation = explain_end(run, exited.of_rank, -exited.code)
        explanation, remedy = split_remedy(explanation)
        return _without_exception(
            run, failed_rank, error or f"ended by {name}", explanation, remedy
        )
    if failed_rank is not None and view.ranks[failed_rank].state == "stopped":
        explanation = "Its cell raised KeyboardInterrupt, or a signal came from outside."
        return _without_exception(run, failed_rank, error or "was interrupted", explanation)
    explanation = "Code in it called os._exit, or exit() in compiled code." if exited.code else ""
    ended = f"exited with {exit_word(exited.code)} without an exception"
    return _without_exception(run, failed_rank, error or ended, explanation)


def _without_exception(
    run: Run, rank: int | None, error: str, explanation: str = "", remedy: str = ""
) -> Cause:
    """Return the cause of a run without an exception."""
    origin, others = _origin(run, rank), _others(run, rank)
    return Cause(origin, error, 0, "", [], _sentence(explanation), remedy, "", others)


def _origin(run: Run, rank: int | None) -> str:
    """Return the name of the rank that failed, with its node if there are several."""
    if rank is None:
        return ""
    host = run.view.ranks[rank].host
    return f"rank {rank} on {plain(host)}" if host else f"rank {rank}"


def _may_be_of_shards(run: Run) -> bool:
    """Return whether one device may not fail."""
    verified = run.view.reports.verified
    fails_alone = verified is not None and bool(reference.failure_of(verified.reason))
    return run.record.options.values.get("exact") != "always" and not fails_alone


def _from_exception(run: Run, failure: Failure) -> Cause:
    lines = run.cell.splitlines()
    known = 0 < failure.line <= len(lines)
    message, remedy = split_remedy(plain(failure.message))
    error = f"{failure.type}: {message}" if message else failure.type
    explanation, way = split_remedy(left_behind(run, failure))
    known_hint = find_hint(failure.type, failure.message, _may_be_of_shards(run))
    likely = Hint(explanation, way) if explanation else known_hint
    said = [likely.explanation, _on_one_device(run, error)]
    return Cause(
        origin=_origin(run, failure.rank),
        error=plain(error),
        number=failure.line,
        line=plain(lines[failure.line - 1].strip()) if known else "",
        context=_context(lines, failure.line) if known else [],
        explanation=" ".join(filter(None, said)),
        remedy=remedy or likely.remedy,
        traceback=coloured("\n".join(failure.traceback)),
        others=_others(run, failure.rank),
    )


def _on_one_device(run: Run, error: str) -> str:
    """Return what the cell raises there, if that has other numbers: the size of the whole batch."""
    verified = run.view.reports.verified
    there = "" if verified is None else reference.failure_of(verified.reason)
    return f"On one device: {there}." if there and not error.startswith(there) else ""


def _from_hang(run: Run, hang: Hang) -> Cause:
    """Return the cause of a run that ``--on-hang stop`` has ended."""
    found = _without_exception(run, None, hang_headline(hang), "; ".join(hang.places), hang.remedy)
    return replace(found, traceback=coloured(hang_report(hang)))


def _context(lines: list[str], number: int) -> list[CellLine]:
    first = max(1, number - CONTEXT_LINES)
    chosen = enumerate(lines[first - 1 : number + CONTEXT_LINES], start=first)
    return [CellLine(n, plain(text), n == number) for n, text in chosen]


def _others(run: Run, failed: int | None) -> list[OtherRank]:
    found = []
    for rank, seen in enumerate(run.view.ranks):
        if rank == failed:
            continue
        failure, code = seen.failure, seen.exit_code
        error = plain(f"{failure.type}: {failure.message}") if failure else ""
        label: str = "failed as well" if failure else seen.state if code is None else "ended"
        label = f"{label} ({exit_word(code)})" if code else label
        label = NOT_STARTED if seen.never_started else label
        trace = coloured("\n".join(failure.traceback)) if failure else ""
        found.append(OtherRank(rank, label, error, trace))
    return found if len(found) <= MANY_RANKS else _joined(found)


def _joined(others: list[OtherRank]) -> list[OtherRank]:
    """Return one of the ranks that ended alike, as each has a traceback of its own."""
    alike: dict[tuple[str, str], list[OtherRank]] = {}
    for other in others:
        alike.setdefault((other.label, other.error), []).append(other)
    return [replace(group[0], alike=len(group) - 1) for group in alike.values()]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
