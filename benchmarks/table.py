"""Results as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .measure import Failed, Result, Summary


def markdown(results: Sequence[Result]) -> str:
    """Return a table per work: median, middle half and ratio to torchrun, where it took part."""
    works = dict.fromkeys(result.work for result in results)
    return "\n\n".join(_table(work, [r for r in results if r.work == work]) for work in works)


def _table(work: str, results: Iterable[Result]) -> str:
    values: dict[str, list[float]] = {}
    unit, failed = "", []
    for result in results:
        if isinstance(result, Failed):
            failed.append(result)
        else:
            values.setdefault(result.tool, []).append(result.value)
            unit = result.unit
    sums = {tool: Summary.of(those) for tool, those in values.items()}
    base = sums.get("torchrun")
    lines = [
        f"### {work}",
        "",
        "| tool | median | middle half | rounds | ratio to torchrun |",
        "|---|---|---|---|---|",
    ]
    for tool, summary in sorted(sums.items(), key=lambda item: item[1].median):
        ratio = f"{summary.median / base.median:.3f}" if base else ""
        spread = f"{summary.low:.3f} to {summary.high:.3f}"
        lines.append(
            f"| {tool} | {summary.median:.3f} {unit} | {spread} | {summary.rounds} | {ratio} |"
        )
    lines += [f"| {each.tool} | failed: {each.reason} | | | |" for each in failed]
    return "\n".join(lines)
