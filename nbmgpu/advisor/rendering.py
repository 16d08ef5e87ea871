"""An ``Advice`` as text and as HTML that needs no script."""

from __future__ import annotations

from html import escape

from nbmgpu.formatting import format_bytes

from .advice import Advice, Estimate
from .interval import span_in_words

HEADER = ("", "strategy", "memory per rank", "fits", "speed", "costs")
COLOURS = {
    "parameters": "#3b6fb6", "gradients": "#c8741a", "optimizer": "#8a5bb0",
    "activations": "#2f8f6b", "buffers": "#a33f54", "extra": "#888888",
}  # fmt: skip
"""Colours that stand on light and on dark pages."""

WIDTH = 180
"""Width of a bar in pixels, when the memory that is free fills it."""


def cells(advice: Advice, row: Estimate) -> tuple[str, ...]:
    """Return a row as words."""
    memory = span_in_words(row.low, row.high) if row.parts else "unknown"
    mark = "->" if row.name == advice.recommended else ""
    fits = row.fits if row.line else "not here"
    return mark, row.name, memory, fits, row.speed.words, row.why or row.costs


def heading(advice: Advice) -> str:
    """Return the line above the table."""
    free = "nobody knows how much memory is free" if advice.free is None else (
        f"{format_bytes(advice.free)} free for each rank"
    )  # fmt: skip
    return f"{advice.model} on {advice.where}: {free}"


def closing(advice: Advice) -> list[str]:
    """Return the lines below the table."""
    lines = [advice.reason]
    if advice.line:
        lines.append(advice.line)
    if advice.largest_batch is not None:
        lines.append(f"A global batch of {advice.largest_batch:,} should fit.")
    return lines


def as_text(advice: Advice) -> str:
    """Return aligned columns."""
    table = [HEADER, *(cells(advice, row) for row in advice.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    notes = [f"- {note}" for note in advice.notes]
    return "\n".join([heading(advice), "", *lines, "", *closing(advice), *notes])


def as_html(advice: Advice) -> str:
    """Return a table with a bar for each strategy."""
    head = "".join(f"<th style='text-align:left'>{escape(h)}</th>" for h in HEADER[1:])
    body = "".join(_row(advice, row) for row in advice.rows)
    reason, *rest = closing(advice)
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
    _, name, memory, fits, speed, costs = map(escape, cells(advice, row))
    strong = row.name == advice.recommended
    name = f"<b>{name}</b>" if strong else name
    left = "style='text-align:left'"
    return (
        f"<tr><td {left}>{name}</td><td {left}>{memory}{_bar(advice, row)}</td>"
        f"<td {left}>{fits}</td><td {left} title='{escape(row.speed.reason)}'>{speed}</td>"
        f"<td {left}>{costs}</td></tr>"
    )


def _bar(advice: Advice, row: Estimate) -> str:
    full = advice.free or max((r.high for r in advice.rows), default=0)
    if not row.parts or not full:
        return ""
    x, pieces = 0.0, []
    for part in row.parts:
        width = WIDTH * (part.low + part.high) / 2 / full
        words = f"{part.kind}: {span_in_words(part.low, part.high)}"
        pieces.append(
            f"<rect x='{x:.1f}' y='0' width='{width:.1f}' height='6' "
            f"fill='{COLOURS[part.kind]}'><title>{escape(words)}</title></rect>"
        )
        x += width
    return (
        f"<br><svg width='{WIDTH}' height='6' viewBox='0 0 {WIDTH} 6' role='img' "
        f"aria-label='of what is free'><rect width='{WIDTH}' height='6' fill='#8884'/>"
        f"{''.join(pieces)}</svg>"
    )
