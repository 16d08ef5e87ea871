"""Results as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from .measure import BASE, Failed, Figure, Phases, Result, Summary, ratio


def markdown(results: Sequence[Result]) -> str:
    """Return a table per work: medians, and what goes with them."""
    works = dict.fromkeys(result.work for result in results)
    return "\n\n".join(_one(work, [r for r in results if r.work == work]) for work in works)


def _one(work: str, results: Sequence[Result]) -> str:
    phases = [result for result in results if isinstance(result, Phases)]
    if phases:
        return _phases(work, phases)
    return _compared(work, [result for result in results if not isinstance(result, Phases)])


def _phases(work: str, results: Sequence[Phases]) -> str:
    """Return a row per case: the median of each phase."""
    names = list(results[0].seconds)
    lines = [
        f"### {work}, seconds",
        "",
        f"| | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for case in dict.fromkeys(result.case for result in results):
        those = [result.seconds for result in results if result.case == case]
        medians = (statistics.median(seconds[name] for seconds in those) for name in names)
        lines.append(f"| {case} | {' | '.join(f'{median:.3f}' for median in medians)} |")
    return "\n".join(lines)


def _compared(work: str, results: Iterable[Figure | Failed]) -> str:
    """Return a row per tool: median, middle half and ratio to torchrun, where it took part."""
    values: dict[str, list[float]] = {}
    unit, failed = "", []
    for result in results:
        if isinstance(result, Failed):
            failed.append(result)
        else:
            values.setdefault(result.tool, []).append(result.value)
            unit = result.unit
    sums = {tool: Summary.of(those) for tool, those in values.items()}
    lines = [
        f"### {work}",
        "",
        "| tool | median | middle half | rounds | ratio to torchrun |",
        "|---|---|---|---|---|",
    ]
    for tool, summary in sorted(sums.items(), key=lambda item: item[1].median):
        by_base = f"{ratio(values[tool], values[BASE]):.3f}" if BASE in values else ""
        spread = f"{summary.low:.3f} to {summary.high:.3f}"
        lines.append(
            f"| {tool} | {summary.median:.3f} {unit} | {spread} | {summary.rounds} | {by_base} |"
        )
    lines += [f"| {each.tool} | failed: {each.reason} | | | |" for each in failed]
    return "\n".join(lines)
