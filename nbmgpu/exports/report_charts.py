"""The curves of a run as SVG, with axes, for a page without scripts."""

from __future__ import annotations

from html import escape

import numpy as np

from nbmgpu.report import text_format
from nbmgpu.report.curves import curve_names, downsample
from nbmgpu.report.summary import polylines
from nbmgpu.runs.curve import Curve
from nbmgpu.runs.run import Run

POINTS = 600
"""Maximum points of a curve."""

WIDTH, HEIGHT = 420, 170
LEFT, BOTTOM = 62, 22
"""Room for the labels of the axes."""

COLOUR = "#3b82f6"


def charts_html(run: Run) -> str:
    """Return a chart for each metric, the loss first."""
    return "".join(_chart(name, run.view.curves[name]) for name in curve_names(run.view))


def _chart(name: str, curve: Curve) -> str:
    steps, values = downsample(*curve.arrays(), POINTS)
    width, height = WIDTH - LEFT, HEIGHT - BOTTOM
    lines = "".join(
        f'<polyline points="{points}" fill="none" stroke="{COLOUR}" stroke-width="1.5" '
        'stroke-linejoin="round" stroke-linecap="round"/>'
        for points in polylines(steps, values, width, height)
    )
    finite = values[np.isfinite(values)]
    labels = [
        _text(LEFT, HEIGHT - 6, str(int(steps[0])), "start"),
        _text(WIDTH - 2, HEIGHT - 6, f"step {int(steps[-1])}", "end"),
    ]
    if len(finite):
        highest, lowest = (text_format.number(float(v)) for v in (finite.max(), finite.min()))
        if highest == lowest:
            labels.append(_text(LEFT - 6, height / 2 + 4, highest, "end"))
        else:
            labels += [_text(LEFT - 6, 12, highest, "end"), _text(LEFT - 6, height, lowest, "end")]
    title = escape(text_format.plain(name))
    frame = (
        f'<path d="M{LEFT} 0V{height}H{WIDTH}" fill="none" stroke="currentColor" '
        'stroke-opacity="0.4"/>'
    )
    plot = f'<g transform="translate({LEFT} 0)">{lines}</g>'
    return (
        '<figure style="display: inline-block; margin: 0 16px 12px 0">'
        f"<figcaption>{title}</figcaption>"
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{title}">{frame}{plot}{"".join(labels)}</svg></figure>'
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="11" fill="currentColor">'
        f"{escape(words)}</text>"
    )
