"""Renders an ``Advice`` as text, and as HTML without scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from nbmgpu.formatting import format_bytes

from .interval import format_interval

if TYPE_CHECKING:
    from .advice import Advice, Estimate

HEADER = ("", "strategy", "memory per rank", "fits", "speed", "between nodes", "costs")
COLORS = {
    "parameters": "#3b6fb6", "gradients": "#c8741a", "optimizer": "#8a5bb0",
    "activations": "#2f8f6b", "buffers": "#a33f54", "extra": "#888888",
}  # fmt: skip
"""Colors with enough contrast on light and on dark backgrounds."""

BAR_WIDTH = 180
"""Width in pixels of a bar that fills the free memory."""


def cells(advice: Advice, row: Estimate) -> tuple[str, ...]:
    """Return the texts of the table cells of one row."""
    memory = format_interval(row.low, row.high) if row.parts else "unknown"
    mark = "->" if row.name == advice.recommended else ""
    fits = row.fits if row.line else "unavailable"
    sent = row.traffic.text if row.traffic else "unknown"
    texts = mark, row.name, memory, fits, row.speed.text, sent, row.problem or row.costs
    return _shown(advice, texts)


def header(advice: Advice) -> tuple[str, ...]:
    """Return the titles of the columns."""
    return _shown(advice, HEADER)


def _shown(advice: Advice, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return texts by column; only ranks on several nodes have something between nodes."""
    if any(row.traffic for row in advice.rows):
        return texts
    place = HEADER.index("between nodes")
    return *texts[:place], *texts[place + 1 :]


def heading(advice: Advice) -> str:
    """Return the line above the table."""
    if advice.free is None:
        free = "free memory unknown"
    else:
        free = f"{format_bytes(advice.free)} free for each rank"
    return f"{advice.model} on {advice.devices}: {free}"


def footer(advice: Advice) -> list[str]:
    """Return the lines below the table."""
    lines = [advice.reason]
    if advice.line:
        lines.append(advice.line)
    if advice.largest_batch is not None:
        lines.append(f"A global batch of {advice.largest_batch:,} should fit.")
    return lines


def as_text(advice: Advice) -> str:
    """Render a table with aligned columns."""
    table = [header(advice), *(cells(advice, row) for row in advice.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    notes = [f"- {note}" for note in advice.notes]
    return "\n".join([heading(advice), "", *lines, "", *footer(advice), *notes])


def as_html(advice: Advice) -> str:
    """Render an HTML table with a memory bar in each row."""
    head = "".join(f"<th style='text-align:left'>{escape(h)}</th>" for h in header(advice)[1:])
    body = "".join(_row(advice, row) for row in advice.rows)
    reason, *rest = footer(advice)
    notes = "".join(f"<li>{escape(note)}</li>" for note in advice.notes)
    return (
        f"<p>{escape(heading(advice))}</p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        f"<p><b>{escape(reason)}</b></p>"
        + "".join(f"<p><code>{escape(line)}</code></p>" if line.startswith("%%")
                  else f"<p>{escape(line)}</p>" for line in rest)
        + (f"<ul>{notes}</ul>" if notes else "")
    )  # fmt: skip


def _row(advice: Advice, row: Estimate) -> str:
    _, name, memory, fits, speed, *others = map(escape, cells(advice, row))
    rest = "".join(f"<td style='text-align:left'>{text}</td>" for text in others)
    name = f"<b>{name}</b>" if row.name == advice.recommended else name
    left = "style='text-align:left'"
    return (
        f"<tr><td {left}>{name}</td><td {left}>{memory}{_memory_bar(advice, row)}</td>"
        f"<td {left}>{fits}</td><td {left} title='{escape(row.speed.reason)}'>{speed}</td>"
        f"{rest}</tr>"
    )


def _memory_bar(advice: Advice, row: Estimate) -> str:
    full = advice.free or max((r.high for r in advice.rows), default=0)
    if not row.parts or not full:
        return ""
    x, rects = 0.0, []
    for part in row.parts:
        width = BAR_WIDTH * (part.low + part.high) / 2 / full
        title = f"{part.kind}: {format_interval(part.low, part.high)}"
        rects.append(
            f"<rect x='{x:.1f}' y='0' width='{width:.1f}' height='6' "
            f"fill='{COLORS[part.kind]}'><title>{escape(title)}</title></rect>"
        )
        x += width
    return (
        f"<br><svg width='{BAR_WIDTH}' height='6' viewBox='0 0 {BAR_WIDTH} 6' role='img' "
        f"aria-label='share of the free memory'>"
        f"<rect width='{BAR_WIDTH}' height='6' fill='#8884'/>{''.join(rects)}</svg>"
    )
