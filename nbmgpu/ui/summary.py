"""What stays of a run in the notebook and in a terminal: text, and HTML without a script.

A saved notebook keeps no widgets, and the places that show it (code hosts,
converters) strip styles and scripts.  So the HTML reads well as bare tables and
lists, and its colours are the page's own, or ones that stand on light and dark.
"""

from __future__ import annotations

from html import escape

import numpy as np

from nbmgpu.run import Run
from nbmgpu.view import Curve

from . import content

POINTS = 240
"""The most points of a curve that are kept in the notebook."""

CURVES = 12
"""The most curves that are drawn; all of them are in ``Run.metrics``."""

WIDTH, HEIGHT = 150, 40

SIGNS = {"good": "✓", "bad": "✗", "calm": "■", "busy": "…", "idle": "…"}
COLOURS = {"good": "#2e9e44", "bad": "#e5484d", "note": "#d08700", "line": "#3b82f6"}


def summary_text(run: Run) -> str:
    """Return the run in a few aligned lines, for terminals."""
    state = run.state
    rows = [(content.state_word(state), _about(run, state))]
    if batch := content.batch_line(run.record):
        rows.append(("batch", batch))
    for name in content.curve_names(run.view)[:CURVES]:
        rows.append((content.plain(name), _course(run.view.curves[name])))
    if more := len(run.view.curves) - CURVES:
        rows += [("", f"{more} more in nbmgpu.last_run.metrics")] if more > 0 else []
    rows += [("note", text) for text in content.notices(run.view)]
    if why := content.cause(run, state):
        rows.append(("failure", f"{why.who}: {why.what}" if why.who else why.what))
        rows += [("", f"line {why.number}: {why.line}")] if why.number else []
        rows += [("ranks", ", ".join(f"{mark.rank} {mark.word}" for mark in content.marks(run)))]
    rows.append(("folder", str(run.folder)))
    return "\n".join(_aligned(rows))


def _aligned(rows: list[tuple[str, str]]) -> list[str]:
    width = min(16, max(len(label) for label, _ in rows))
    indent = "\n" + " " * (width + 2)
    return [f"{label:<{width}}  {text.replace(chr(10), indent)}" for label, text in rows]


def summary_html(run: Run) -> str:
    """Return the run as static HTML: no script, no style sheet, all text escaped."""
    state = run.state
    parts = [_headline(run, state), _notices(run), _failure(run, state), _curves(run), _ranks(run)]
    return f'<div style="max-width: 60em">{"".join(parts)}</div>'


def _about(run: Run, state: str) -> str:
    duration = run.view.last_time - run.record.created if state == "lost" else run.duration
    return f"{content.headline(run.record)}, {content.clock(max(0.0, duration))}"


def _headline(run: Run, state: str) -> str:
    tone = content.TONES.get(state, "idle")
    colour = f' style="color: {COLOURS[tone]}"' if tone in COLOURS else ""
    word = f"<b{colour}>{SIGNS[tone]} {escape(content.state_word(state))}</b>"
    batch = escape(content.batch_line(run.record))
    aside = " &nbsp;·&nbsp; ".join(filter(None, [batch, f"run {escape(run.id)}"]))
    about = escape(_about(run, state))
    return f'<p style="margin: 4px 0">{word} &nbsp; {about}<br><small>{aside}</small></p>'


def _notices(run: Run) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in content.notices(run.view))
    if not items:
        return ""
    return (
        f'<ul style="margin: 6px 0; padding: 2px 10px; list-style: none; '
        f'border-left: 3px solid {COLOURS["note"]}">{items}</ul>'
    )


def _failure(run: Run, state: str) -> str:
    why = content.cause(run, state)
    if not why:
        return ""
    who = f"{why.who} failed" if why.who else "The run failed"
    line = f"\nline {why.number}:  {why.line}" if why.number else ""
    return (
        f'<div style="margin: 6px 0; padding: 2px 10px; border-left: 3px solid {COLOURS["bad"]}">'
        f"<b>{escape(who)}</b>"
        f'<pre style="margin: 0; white-space: pre-wrap; background: none; color: inherit">'
        f"{escape(why.what + line)}</pre></div>"
    )


def _curves(run: Run) -> str:
    names = content.curve_names(run.view)
    cells = [_curve(name, run.view.curves[name]) for name in names[:CURVES]]
    if len(names) > CURVES:
        cells.append(f"<p><small>{len(names) - CURVES} more in nbmgpu.last_run.metrics</small></p>")
    return f"<div>{''.join(cells)}</div>" if cells else ""


def _curve(name: str, curve: Curve) -> str:
    label = escape(content.plain(name))
    lines = "".join(
        f'<polyline points="{points}" fill="none" stroke="{COLOURS["line"]}" '
        f'stroke-width="1.5" stroke-linejoin="round" stroke-linecap="round"/>'
        for points in _polylines(*content.thin(curve, POINTS))
    )
    svg = (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{label}" style="display: block; margin-top: 2px">{lines}</svg>'
    )
    return (
        f'<div style="display: inline-block; margin: 4px 20px 4px 0; vertical-align: top">'
        f"<small>{label}</small> &nbsp;<b>{escape(_course(curve))}</b>{svg}</div>"
    )


def _polylines(steps: np.ndarray, values: np.ndarray) -> list[str]:
    """Return the points of the lines between gaps; a value that is no number makes one."""
    finite = np.isfinite(values)
    if not finite.any():
        return []
    low, high = values[finite].min(), values[finite].max()
    first, last = steps[0], steps[-1]
    # Halves, so that the span of the largest floats does not overflow.
    span = high / 2 - low / 2
    with np.errstate(invalid="ignore", over="ignore"):
        down = (high / 2 - values / 2) / span if span else np.full(len(values), 0.5)
    x = 2 + (WIDTH - 4) * (steps - first) / max(1, last - first)
    y = 2 + (HEIGHT - 4) * down
    places = [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True)]
    lines: list[list[str]] = [[]]
    for place, sound in zip(places, finite, strict=True):
        if sound:
            lines[-1].append(place)
        elif lines[-1]:
            lines.append([])
    # A single point becomes a dot: a line of no length with round ends.
    return [" ".join(line if len(line) > 1 else line * 2) for line in lines if line]


def _ranks(run: Run) -> str:
    """Return how each rank ended, where that says more than the headline."""
    marks = content.marks(run)
    if all(mark.tone != "bad" for mark in marks):
        return ""
    words = ", ".join(f"rank {mark.rank} {mark.word}" for mark in marks)
    return f"<p><small>{escape(words)}</small></p>"


def _course(curve: Curve) -> str:
    """Return where a curve began and where it is: ``2.303 → 0.1235``."""
    _, values = curve.arrays()
    first, last = content.number(float(values[0])), content.number(float(values[-1]))
    return last if first == last else f"{first} → {last}"
