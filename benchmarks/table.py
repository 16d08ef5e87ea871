"""Results as Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from .measure import BASE, BY_HAND, Call, Failed, Figure, Phases, Profile, Result, Summary, ratio

TOTAL = "total"
"""The sum of the other phases."""


def markdown(results: Sequence[Result]) -> str:
    """Return a table for each workload."""
    workloads: dict[str, list[Result]] = {}
    for result in results:
        workloads.setdefault(result.workload, []).append(result)
    zeros = {name: those for name, those in workloads.items() if _all_zero(those)}
    tables = [
        _table(workload, those) for workload, those in workloads.items() if workload not in zeros
    ]
    if zeros:
        rounds = len(next(iter(zeros.values())))
        tables.append(f"0 in {_rounds(rounds)}: {'; '.join(zeros)}.")
    return "\n\n".join(tables)


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count > 1)}"


def _all_zero(results: Sequence[Result]) -> bool:
    """Whether all results are counts of zero."""
    return all(isinstance(each, Figure) and not each.unit and not each.value for each in results)


def _table(workload: str, results: Sequence[Result]) -> str:
    if phases := [each for each in results if isinstance(each, Phases)]:
        return _phases(workload, phases)
    if profiles := [each for each in results if isinstance(each, Profile)]:
        return _profile(workload, profiles[0].calls)
    return _comparison(workload, [each for each in results if isinstance(each, Figure | Failed)])


def _phases(workload: str, results: Sequence[Phases]) -> str:
    """Return a row per case: the median of each phase, and the quartiles of the total."""
    names = list(results[0].seconds)
    cases: dict[str, list[dict[str, float]]] = {}
    for result in results:
        cases.setdefault(result.case, []).append(result.seconds)
    rounds = len(next(iter(cases.values())))
    lines = [
        f"### {workload}, seconds, {_rounds(rounds)}",
        "",
        f"| | {' | '.join(names)} | middle half |",
        "|---" * (len(names) + 2) + "|",
    ]
    for case, those in cases.items():
        medians = (statistics.median(seconds[name] for seconds in those) for name in names)
        whole = Summary.of([seconds[TOTAL] for seconds in those])
        cells = [f"{median:.3f}" for median in medians]
        lines.append(f"| {case} | {' | '.join(cells)} | {whole.low:.3f} to {whole.high:.3f} |")
    return "\n".join(lines)


def _profile(workload: str, calls: Sequence[Call]) -> str:
    """Return a row for each of the slowest functions."""
    lines = [
        f"### {workload}: one run under cProfile, which slows small functions down",
        "",
        "| function | calls | seconds | with callees |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{call.name}` | {call.calls:,} | {call.own:.3f} | {call.cumulative:.3f} |"
        for call in calls
    ]
    return "\n".join(lines)


def _comparison(workload: str, results: Iterable[Figure | Failed]) -> str:
    """Return a row per tool, the best first: median, quartiles, and ratio to torchrun.

    Where the same was written by hand, it is the ratio to that.
    """
    values: dict[str, list[float]] = {}
    unit, failed, more = "", [], False
    for result in results:
        if isinstance(result, Failed):
            failed.append(result)
        else:
            values.setdefault(result.tool, []).append(result.value)
            unit, more = result.unit, result.more_is_better
    base = BY_HAND if BY_HAND in values else BASE
    sums = {tool: Summary.of(those) for tool, those in values.items()}
    lines = [
        f"### {workload}",
        "",
        f"| tool | median | middle half | rounds | ratio to {base} |",
        "|---|---|---|---|---|",
    ]
    for tool, summary in sorted(sums.items(), key=lambda item: item[1].median, reverse=more):
        by_base = f"{ratio(values[tool], values[base]):.3f}" if base in values else ""
        spread = f"{summary.low:.3f} to {summary.high:.3f}"
        value = f"{summary.median:.3f} {unit}".strip()
        lines.append(f"| {tool} | {value} | {spread} | {summary.rounds} | {by_base} |")
    for each in failed:
        why = each.reason.replace("|", "\\|")
        lines.append(f"| {each.tool} | failed: {why} | | | |")
    return "\n".join(lines)
