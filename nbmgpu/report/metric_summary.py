"""The metrics of a run in its summary: a table, and a link that holds them as CSV."""

from __future__ import annotations

import base64
from html import escape

from nbmgpu.formatting import format_count
from nbmgpu.runs.run import Run

from .curves import RATES, curve_names
from .metric_rows import Extreme, MetricRow, metric_row
from .metrics_csv import csv_pages
from .text_format import number

ROWS = 12
"""Maximum metrics in the table; ``Run.metrics`` has all."""

CSV_BYTES = 32 << 10
"""The largest file that the link holds: it is saved in the notebook with every run."""

CSV_POINTS = 8_000
"""Points from which on the file is larger for certain: a digit, a comma, a step, a line's end."""

HEADS = ("Metric", "First", "Last", "Lowest", "Highest", "Points")


def metrics_html(run: Run) -> str:
    """Return the first, last, lowest and highest value of each metric, to be unfolded."""
    curves = run.view.curves
    names = sorted(curve_names(run.view), key=lambda name: name in RATES)
    if not names:
        return ""
    head = "".join(f'<th scope="col">{name}</th>' for name in HEADS)
    rows = "".join(_row(run, name) for name in names[:ROWS])
    more = f"{len(names) - ROWS} more; " if len(names) > ROWS else ""
    points = sum(len(curves[name]) for name in names)
    code = escape(f'nbmgpu.find_run("{run.id}").metrics.to_csv("metrics.csv")')
    link = _csv_link(run) if points <= CSV_POINTS else ""
    all_points = f"{link} &nbsp; " if link else ""
    return (
        f"<details><summary>{format_count(len(names), 'metric')} as a table</summary>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f'<p style="margin: 2px 0"><small>{all_points}{more}all points: <code>{code}</code>'
        "</small></p></details>"
    )


def _row(run: Run, name: str) -> str:
    curve = run.view.curves[name]
    row = metric_row(name, curve, None)
    first = number(float(curve.arrays()[1][0]))
    cells = (first, row.last, _extreme(row, "lowest"), _extreme(row, "highest"), f"{row.points:,}")
    values = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(row.name)}</th>{values}</tr>'


def _extreme(row: MetricRow, which: str) -> str:
    """Return a value and its step; the best value is bold."""
    found: Extreme | None = getattr(row, which)
    if found is None:
        return "-"
    value = f"<b>{found.value}</b>" if row.best == which else found.value
    return f"{value} <small>at step {found.step:,}</small>"


def _csv_link(run: Run) -> str:
    """Return a link with all points in its address; empty if they are too many."""
    text = "".join(csv_pages(run))
    if len(text.encode()) > CSV_BYTES:
        return ""
    content = base64.b64encode(text.encode()).decode()
    name = escape(f"{run.id}-metrics.csv")
    return f'<a download="{name}" href="data:text/csv;charset=utf-8;base64,{content}">CSV</a>'
