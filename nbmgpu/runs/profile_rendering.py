"""A ``ProfileTable`` as text and as static HTML."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from nbmgpu.formatting import format_bytes, format_count

if TYPE_CHECKING:
    from .profile_table import ProfileRow, ProfileTable

VIEWER = "https://ui.perfetto.dev"
"""Opens traces, in the browser: nothing is uploaded."""

HEADS = ("rank", "steps", "ms per step", "compute", "communication", "data", "host", "hidden")

NO_ROWS = "No step was profiled: %%mgpu --profile profiles steps 5 to 10 of a cell that trains."


def as_text(table: ProfileTable) -> str:
    """Return the table as aligned lines, and where the traces are."""
    if not table.rows:
        return NO_ROWS
    lines = [HEADS, *map(_cells, table.rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = ["  ".join(map(str.rjust, line, widths)) for line in lines]
    return "\n".join([*texts, traces(table)])


def as_html(table: ProfileTable) -> str:
    """Return the table as HTML that needs no style sheet."""
    if not table.rows:
        return f"<p>{escape(NO_ROWS)}</p>"
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEADS)
    rows = "".join(map(_html_row, table.rows))
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        f"<p><small>{escape(traces(table))}</small></p>"
    )


def in_short(table: ProfileTable) -> str:
    """Return the mean over the ranks in a line: ``steps 5-10: 24 ms = 6.1 ms compute + ...``."""
    rows = table.rows
    steps = " and ".join(dict.fromkeys(row.steps for row in rows))

    def mean(name: str) -> str:
        return milliseconds(sum(getattr(row, name) for row in rows) / len(rows))

    parts = " + ".join(
        f"{mean(name)} {name}" for name in ("compute", "communication", "data", "host")
    )
    ranks = f", mean of {format_count(len(rows), 'rank')}" if len(rows) > 1 else ""
    return f"steps {steps}{ranks}: {mean('step_time')} ms per step = {parts}"


def traces(table: ProfileTable) -> str:
    """Return where the traces are, and what opens them."""
    first = Path(table.rows[0].trace)
    size = sum(row.nbytes for row in table.rows)
    name = first.name if len(table.rows) == 1 else "trace_rank*.json.gz"
    return f"Traces ({format_bytes(size)}), to open at {VIEWER}: {first.with_name(name)}"


def milliseconds(seconds: float) -> str:
    """Format a time in milliseconds without the unit: ``0.35``, ``4.2``, ``123``."""
    value = 1e3 * seconds
    if value < 0.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def _cells(row: ProfileRow) -> tuple[str, ...]:
    times = row.step_time, row.compute, row.communication, row.data, row.host, row.hidden
    return (str(row.rank), row.steps, *map(milliseconds, times))


def _html_row(row: ProfileRow) -> str:
    first, *others = _cells(row)
    cells = "".join(f"<td>{escape(text)}</td>" for text in others)
    return f'<tr><th scope="row">{first}</th>{cells}</tr>'
