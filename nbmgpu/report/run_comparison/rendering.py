"""A comparison of runs as text, and as static HTML for the saved notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from nbmgpu.report.curve_chart import NamedLine, chart_svg, line_style
from nbmgpu.report.curves import CurveLine, decode_points

if TYPE_CHECKING:
    from .payload import RunComparison

CHARTS = 6
"""Maximum number of charts."""

NAME_STYLE = "max-width: 26em; overflow: hidden; text-overflow: ellipsis; white-space: nowrap"
"""Of the name of a run, which may have 80 characters; its title has all."""

DIFF_COLOURS = {"added": "#2e9e44", "removed": "#e5484d"}
DIFF_SIGNS = {"added": "+", "removed": "-", "same": " ", "gap": "…"}


def comparison_text(comparison: RunComparison) -> str:
    """Return the table with a line per property, and a column per run."""
    rows = [["run", *(run.id for run in comparison.runs)]]
    rows.append(["", *(run.title[:24] for run in comparison.runs)])
    rows += [[c.name, *(cell.text[:24] for cell in c.cells)] for c in comparison.columns]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{t:<{w}}" for t, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def comparison_html(comparison: RunComparison) -> str:
    """Return charts, table and differences: no script, no style sheet, all text escaped."""
    parts = [_charts(comparison), _table(comparison), _differences(comparison)]
    return f"<div>{''.join(parts)}</div>"


def _mark(place: int) -> str:
    style = line_style(place)
    if not style.dash:
        return f'<span style="color: {style.colour}">●</span>'
    line = f"<path d='M0,4H18' {style.attributes} stroke-width='2'/>"
    return f"<svg width='18' height='8' aria-hidden='true'>{line}</svg>"


def _charts(comparison: RunComparison) -> str:
    titles = [run.title for run in comparison.runs]
    drawn = []
    for metric in comparison.metrics[:CHARTS]:
        lines = [
            _line(titles[run], run, line)
            for run, line in zip(metric.runs, metric.lines, strict=True)
        ]
        drawn.append(chart_svg(metric.name, lines))
    return "".join(drawn)


def _line(title: str, run: int, line: CurveLine) -> NamedLine:
    return NamedLine(title, line_style(run), *decode_points(line.points))


def _table(comparison: RunComparison) -> str:
    names = "".join(
        f'<th style="text-align: left">{escape(column.name)}</th>' for column in comparison.columns
    )
    rows = []
    for place, run in enumerate(comparison.runs):
        cells = "".join(
            f'<td style="text-align: left">{escape(column.cells[place].text)}</td>'
            for column in comparison.columns
        )
        name = escape(run.title, quote=True)
        title = f'<div title="{name}" style="{NAME_STYLE}">{_mark(place)} {name}</div>'
        head = f"{title}<small>{escape(run.id)}</small>"
        rows.append(f'<tr><th style="text-align: left">{head}</th>{cells}</tr>')
    return (
        f"<table><thead><tr><th>run</th>{names}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _differences(comparison: RunComparison) -> str:
    parts = []
    for place, (run, cell) in enumerate(zip(comparison.runs, comparison.cells, strict=True)):
        if not cell.lines:
            continue
        lines = "\n".join(
            f'<span style="color: {DIFF_COLOURS.get(line.kind, "inherit")}">'
            f"{DIFF_SIGNS[line.kind]} {escape(line.text)}</span>"
            for line in cell.lines
        )
        first = escape(comparison.runs[0].id)
        summary = f"{_mark(place)} {escape(run.title)}: its cell, compared with that of {first}"
        parts.append(f"<details><summary>{summary}</summary><pre>{lines}</pre></details>")
    return "".join(parts)
