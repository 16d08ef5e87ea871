"""A chart of several curves as SVG, without scripts or style sheets, for light and dark themes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from .polylines import Range, finite_range, polylines
from .svg_text import svg_text
from .text_format import number

WIDTH, HEIGHT = 340, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 8, 20
"""Widths of the margins, in pixels; labels of values are on the left, those of steps below."""

COLOURS = (
    "#3b82f6", "#e08b00", "#0d9488", "#db5a8b", "#a855f7",
    "#65a30d", "#06a3c4", "#a16b4f", "#6366f1", "#8b93a1",
)  # fmt: skip
"""A colour for each run, which stand out from white and from black."""

DASHES = ("", "7 4", "2 4", "8 4 2 4")
"""The dash pattern of each further ten runs, whose colours repeat: solid, dashed, dotted, both."""

STYLE = "display: inline-block; margin: 4px 20px 8px 0; vertical-align: top"


@dataclass(frozen=True)
class LineStyle:
    """How a line differs from others.

    Attributes:
        colour: as in CSS.
        dash: lengths of dashes and gaps in pixels; empty for a solid line.
    """

    colour: str
    dash: str = ""

    @property
    def attributes(self) -> str:
        """The attributes of an SVG element."""
        dashes = f" stroke-dasharray='{self.dash}'" if self.dash else ""
        return f"stroke='{self.colour}'{dashes}"


def line_style(place: int) -> LineStyle:
    """Return the style of the run at ``place``."""
    turn, colour = divmod(place, len(COLOURS))
    return LineStyle(COLOURS[colour], DASHES[turn % len(DASHES)])


@dataclass(frozen=True)
class NamedLine:
    """A curve.

    Attributes:
        name: shown when the pointer is on it.
        style: its colour and dashes.
        x, y: float arrays of the same length; where y is not finite, the line has a gap.
    """

    name: str
    style: LineStyle
    x: np.ndarray
    y: np.ndarray


def chart_svg(title: str, lines: Sequence[NamedLine]) -> str:
    """Return a figure with all lines on the same axes; empty if no value is finite."""
    if not lines:
        return ""
    step_range = finite_range(np.concatenate([line.x for line in lines]))
    value_range = finite_range(np.concatenate([line.y for line in lines]))
    if step_range is None or value_range is None:
        return ""
    drawn = "".join(_line(line, step_range, value_range) for line in lines)
    (first, last), (low, high) = step_range, value_range
    labels = [
        svg_text(LEFT, HEIGHT - 6, number(first), "start", size=10),
        svg_text(WIDTH - RIGHT, HEIGHT - 6, f"step {number(last)}", "end", size=10),
    ]
    if low == high:
        labels.append(svg_text(LEFT - 4, (HEIGHT - BOTTOM + TOP) / 2, number(high), "end", size=10))
    else:
        labels.append(svg_text(LEFT - 4, TOP + 8, number(high), "end", size=10))
        labels.append(svg_text(LEFT - 4, HEIGHT - BOTTOM, number(low), "end", size=10))
    frame = (
        f"<path d='M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}' fill='none' "
        "stroke='currentColor' stroke-opacity='0.3'/>"
    )
    name = escape(title, quote=True)
    return (
        f"<figure style='{STYLE}'><figcaption><small>{name}</small></figcaption>"
        f"<svg width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
        f"aria-label='{name}'>{frame}<g transform='translate({LEFT} {TOP})'>{drawn}</g>"
        f"{''.join(labels)}</svg></figure>"
    )


def _line(line: NamedLine, step_range: Range, value_range: Range) -> str:
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    drawn = "".join(
        f"<polyline points='{points}'/>"
        for points in polylines(line.x, line.y, width, height, step_range, value_range)
    )
    return (
        f"<g fill='none' {line.style.attributes} stroke-width='1.5' stroke-linejoin='round' "
        f"stroke-linecap='round'><title>{escape(line.name)}</title>{drawn}</g>"
    )
