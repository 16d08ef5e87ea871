"""Results as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from .measure import BASE, Call, Failed, Figure, Phases, Profile, Result, Summary, ratio

ALL = "in all"
"""The phase that is the sum of the others."""


def markdown(results: Sequence[Result]) -> str:
    """Return a table per work: medians, and what goes with them."""
    works: dict[str, list[Result]] = {}
    for result in results:
        works.setdefault(result.work, []).append(result)
    zero = {work: those for work, those in works.items() if _nothing(those)}
    tables = [_one(work, those) for work, those in works.items() if work not in zero]
    if zero:
        rounds = len(next(iter(zero.values())))
        tables.append(f"0 in {_rounds(rounds)}: {'; '.join(zero)}.")
    return "\n\n".join(tables)


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count > 1)}"


def _nothing(results: Sequence[Result]) -> bool:
    """Whether something was counted, and there was none of it."""
    return all(isinstance(each, Figure) and not each.unit and not each.value for each in results)


def _one(work: str, results: Sequence[Result]) -> str:
    if phases := [each for each in results if isinstance(each, Phases)]:
        return _phases(work, phases)
    if profiles := [each for each in results if isinstance(each, Profile)]:
        return _profile(work, profiles[0].calls)
    return _compared(work, [each for each in results if isinstance(each, Figure | Failed)])


def _phases(work: str, results: Sequence[Phases]) -> str:
    """Return a row per case: the median of each phase, and how far their sum was spread."""
    names = list(results[0].seconds)
    cases: dict[str, list[dict[str, float]]] = {}
    for result in results:
        cases.setdefault(result.case, []).append(result.seconds)
    rounds = len(next(iter(cases.values())))
    lines = [
        f"### {work}, seconds, {_rounds(rounds)}",
        "",
        f"| | {' | '.join(names)} | middle half |",
        "|---" * (len(names) + 2) + "|",
    ]
    for case, those in cases.items():
        medians = (statistics.median(seconds[name] for seconds in those) for name in names)
        whole = Summary.of([seconds[ALL] for seconds in those])
        cells = [f"{median:.3f}" for median in medians]
        lines.append(f"| {case} | {' | '.join(cells)} | {whole.low:.3f} to {whole.high:.3f} |")
    return "\n".join(lines)


def _profile(work: str, calls: Sequence[Call]) -> str:
    """Return a row per function: those that took most by themselves."""
    lines = [
        f"### {work}: one run under cProfile, which slows small functions down",
        "",
        "| function | calls | own seconds | with what it calls |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{call.name}` | {call.calls:,} | {call.own:.3f} | {call.cumulative:.3f} |"
        for call in calls
    ]
    return "\n".join(lines)


def _compared(work: str, results: Iterable[Figure | Failed]) -> str:
    """Return a row per tool, the best first: median, middle half, and ratio to torchrun's."""
    values: dict[str, list[float]] = {}
    unit, failed, more = "", [], False
    for result in results:
        if isinstance(result, Failed):
            failed.append(result)
        else:
            values.setdefault(result.tool, []).append(result.value)
            unit, more = result.unit, result.more_is_better
    sums = {tool: Summary.of(those) for tool, those in values.items()}
    lines = [
        f"### {work}",
        "",
        "| tool | median | middle half | rounds | ratio to torchrun |",
        "|---|---|---|---|---|",
    ]
    for tool, summary in sorted(sums.items(), key=lambda item: item[1].median, reverse=more):
        by_base = f"{ratio(values[tool], values[BASE]):.3f}" if BASE in values else ""
        spread = f"{summary.low:.3f} to {summary.high:.3f}"
        value = f"{summary.median:.3f} {unit}".strip()
        lines.append(f"| {tool} | {value} | {spread} | {summary.rounds} | {by_base} |")
    for each in failed:
        why = each.reason.replace("|", "\\|")
        lines.append(f"| {each.tool} | failed: {why} | | | |")
    return "\n".join(lines)
