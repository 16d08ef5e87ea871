"""A chart of several curves as SVG, without scripts or style sheets, for light and dark themes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from .text_format import number

WIDTH, HEIGHT = 340, 180
LEFT, RIGHT, TOP, BOTTOM = 52, 10, 8, 20
"""Widths of the margins, in pixels; labels of values are on the left, those of steps below."""

COLOURS = (
    "#3b82f6", "#e08b00", "#0d9488", "#db5a8b", "#a855f7",
    "#65a30d", "#06a3c4", "#a16b4f", "#6366f1", "#8b93a1",
)  # fmt: skip
"""A colour for each run, which stand out from white and from black."""

STYLE = "display: inline-block; margin: 4px 20px 8px 0; vertical-align: top"


@dataclass(frozen=True)
class NamedLine:
    """A curve.

    Attributes:
        name: shown when the pointer is on it.
        colour: as in CSS.
        x, y: float arrays of the same length; where y is not finite, the line has a gap.
    """

    name: str
    colour: str
    x: np.ndarray
    y: np.ndarray


def chart_svg(title: str, lines: Sequence[NamedLine]) -> str:
    """Return a figure with all lines on the same axes."""
    finite = [np.isfinite(line.y) for line in lines]
    xs = np.concatenate([line.x[kept] for line, kept in zip(lines, finite, strict=True)] or [[]])
    ys = np.concatenate([line.y[kept] for line, kept in zip(lines, finite, strict=True)] or [[]])
    if not len(xs):
        return ""
    x_range, y_range = _range(xs), _range(ys)
    drawn = "".join(_path(line, x_range, y_range) for line in lines)
    labels = [
        _text(LEFT - 4, TOP + 8, number(y_range[1]), "end"),
        _text(LEFT - 4, HEIGHT - BOTTOM, number(y_range[0]), "end"),
        _text(LEFT, HEIGHT - 6, number(x_range[0]), "start"),
        _text(WIDTH - RIGHT, HEIGHT - 6, number(x_range[1]), "end"),
    ]
    frame = (
        f"<path d='M{LEFT},{TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}' fill='none' "
        "stroke='currentColor' stroke-opacity='0.3'/>"
    )
    return (
        f"<figure style='{STYLE}'><figcaption><small>{escape(title)}</small></figcaption>"
        f"<svg width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
        f"aria-label='{escape(title, quote=True)}'>{frame}{drawn}{''.join(labels)}</svg></figure>"
    )


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _path(line: NamedLine, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    x = LEFT + width * (line.x - x_range[0]) / (x_range[1] - x_range[0])
    y = TOP + height * (y_range[1] - line.y) / (y_range[1] - y_range[0])
    parts, pen_up = [], True
    for at, value in zip(x.tolist(), y.tolist(), strict=True):
        if np.isfinite(value):
            parts.append(f"{'M' if pen_up else 'L'}{at:.1f},{value:.1f}")
        pen_up = not np.isfinite(value)
    return (
        f"<path d='{''.join(parts)}' fill='none' stroke='{line.colour}' stroke-width='1.5' "
        f"stroke-linecap='round'><title>{escape(line.name)}</title></path>"
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f"<text x='{x}' y='{y}' text-anchor='{anchor}' font-size='10' fill='currentColor'>"
        f"{escape(words)}</text>"
    )
