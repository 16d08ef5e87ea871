"""SVG charts without scripts or style sheets, for light and dark themes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from nbmgpu.report.svg_text import svg_text

LABELS, BAR, TEXT, ROW = 150, 170, 80, 20
"""Widths of the labels, the longest bar and the text after it, and the height of a row."""

SIDE = 190
"""Width and height of the plot area."""

COLOUR, IDEAL = "#3b82f6", "#888888"

FIGURE_STYLE = "display:inline-block;margin:6px 24px 6px 0;vertical-align:top"


def bar_chart(
    title: str, rows: Sequence[tuple[str, float, str]], colours: Mapping[str, str]
) -> str:
    """Return a bar for each ``(name, value, text)``; ``colours`` overrides colors by name."""
    longest = max(value for _, value, _ in rows) or 1.0
    drawn = []
    for place, (name, value, words) in enumerate(rows):
        y, width = place * ROW, max(1.0, BAR * value / longest)
        drawn.append(
            svg_text(LABELS - 6, y + 14, name, "end")
            + f"<rect x='{LABELS}' y='{y + 3}' width='{width:.1f}' height='14' rx='2' "
            f"fill='{colours.get(name, COLOUR)}'/>" + svg_text(LABELS + width + 6, y + 14, words)
        )
    return _figure(title, LABELS + BAR + TEXT, ROW * len(rows), "".join(drawn))


def line_chart(title: str, points: Sequence[tuple[int, float]]) -> str:
    """Return a line through ``(ranks, speed-up)``, and a dashed one for ideal scaling."""
    most = max(ranks for ranks, _ in points)
    top = max(most, *(value for _, value in points))

    def place(ranks: float, value: float) -> tuple[float, float]:
        return 30 + (SIDE - 60) * ranks / most, SIDE - 22 - (SIDE - 40) * value / top

    ideal = _line([place(0, 0), place(most, most)], IDEAL, "stroke-dasharray='4 3'")
    line = _line([place(*point) for point in points], COLOUR)
    marks = []
    for ranks, value in points:
        x, y = place(ranks, value)
        marks.append(
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{COLOUR}'/>"
            + svg_text(x + 6, y + 4, f"{value:.2f}x")
            + svg_text(x, SIDE - 6, str(ranks), "middle")
        )
    return _figure(title, SIDE + 20, SIDE, ideal + line + "".join(marks))


def _line(points: Sequence[tuple[float, float]], colour: str, more: str = "") -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<polyline points='{drawn}' fill='none' stroke='{colour}' stroke-width='1.5' {more}/>"


def _figure(title: str, width: int, height: int, content: str) -> str:
    return (
        f"<div style='{FIGURE_STYLE}'><small>{escape(title)}</small><br><svg width='{width}' "
        f"height='{height}' viewBox='0 0 {width} {height}' role='img' "
        f"aria-label='{escape(title)}' style='color:inherit'>{content}</svg></div>"
    )
