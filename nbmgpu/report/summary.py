"""The summary of a run: text for terminals, and static HTML for the saved notebook.

A saved notebook keeps no widgets, and sites that render notebooks strip styles and scripts. The
HTML therefore works without them, with colors for light and dark themes.
"""

from __future__ import annotations

import re
from html import escape

from nbmgpu.formatting import format_count
from nbmgpu.runs import profile_rendering
from nbmgpu.runs.curve import Curve
from nbmgpu.runs.events import RunState
from nbmgpu.runs.run import Run
from nbmgpu.runs.shard_rendering import as_html, in_short

from . import text_format
from .curves import RATES, Throughput, curve_names, downsample, throughput
from .failure_cause import Cause, cause
from .metric_summary import metrics_html
from .node_rows import node_lines, node_rows
from .polylines import polylines
from .rank_rows import RankRow, rows
from .tensorboard_folders import shown_folders, tensorboard_command

POINTS = 240
"""Maximum points of a curve in the summary."""

CURVES = 12
"""Maximum curves that are drawn; ``Run.metrics`` has all."""

WIDTH, HEIGHT = 150, 40

SIGNS = {"good": "✓", "bad": "✗", "calm": "■", "busy": "…", "idle": "…"}
COLOURS = {"good": "#2e9e44", "bad": "#e5484d", "note": "#d08700", "line": "#3b82f6"}


def summary_text(run: Run) -> str:
    """Return the run in a few aligned lines, for terminals."""
    state = run.state
    lines = [(text_format.state_word(state), _about(run))]
    if batch := text_format.batch_line(run):
        lines.append(("batch", batch))
    if verified := text_format.verified(run.view):
        lines.append(("verified", verified))
    names = _metrics(run)
    for name in names[:CURVES]:
        lines.append((text_format.plain(name), _course(run.view.curves[name])))
    if len(names) > CURVES:
        lines.append(("", f"{len(names) - CURVES} more in {_code(run, 'metrics')}"))
    if pace := _pace(throughput(run)):
        lines.append(("speed", pace))
    if (table := run.shards).rows:
        lines.append(("shards", f"{in_short(table)}; by layer: {_code(run, 'shards')}"))
    if (profile := run.profile).rows:
        lines.append(("profile", profile_rendering.in_short(profile)))
        lines.append(("", f"by rank: {_code(run, 'profile')}"))
        lines.append(("", profile_rendering.traces(profile)))
    lines += [("note", text) for text in text_format.notices(run.view)]
    if failure := cause(run, state):
        origin = f"{failure.origin}: " if failure.origin else ""
        lines.append(("failure", f"{origin}{failure.error}"))
        lines += [("", f"line {failure.number}: {failure.line}")] if failure.line else []
        lines += [("likely", failure.explanation)] if failure.explanation else []
        lines += [("try", failure.remedy)] if failure.remedy else []
        if run.record.nodes == 1:
            lines.append(("ranks", ", ".join(f"{row.rank} {row.label}" for row in _rows(run))))
    for at, line in enumerate(node_lines(node_rows(run, run.view.last_time))):
        lines.append(("" if at else "nodes", line))
    for folder in shown_folders(run.view.tensorboard).values():
        lines.append(("TensorBoard", tensorboard_command(folder)))
    lines.append(("folder", str(run.folder)))
    return "\n".join(_aligned(lines))


def _code(run: Run, attribute: str) -> str:
    """Return code that returns an attribute of ``run``."""
    return f'nbmgpu.find_run("{run.id}").{attribute}'


def _rows(run: Run) -> list[RankRow]:
    return rows(run, run.view.last_time)


def _metrics(run: Run) -> list[str]:
    """Return the names of the curves without the rates."""
    return [name for name in curve_names(run.view) if name not in RATES]


def _pace(speed: Throughput) -> str:
    """Return the throughput: ``1,234 samples/s, 12 ms per step``."""
    pace = ", ".join(filter(None, [speed.rate, _cost(speed)]))
    return f"{pace}; {speed.message}" if pace and speed.message else pace


def _cost(speed: Throughput) -> str:
    """Return what a step costs: ``12 ms per step; a rank sends 1.4 MiB in 3 collectives``."""
    if not speed.step_time:
        return ""
    return f"{speed.step_time} per step" + (f"; a rank sends {speed.sent}" if speed.sent else "")


def _aligned(lines: list[tuple[str, str]]) -> list[str]:
    width = min(16, max(len(label) for label, _ in lines))
    indent = "\n" + " " * (width + 2)
    return [f"{label:<{width}}  {text.replace(chr(10), indent)}" for label, text in lines]


def summary_html(run: Run, curves: bool = True) -> str:
    """Return the run as static HTML: no script, no style sheet, all text escaped.

    Args:
        run: the run.
        curves: whether to draw its curves.
    """
    state = run.state
    failure = cause(run, state)
    parts = [_headline(run, state), _notices(run), _failure(failure)]
    parts += [_curves(run) if curves else "", metrics_html(run)]
    parts += [_tensorboard(run), _shards(run), _profile(run), _ranks(run)]
    return f'<div style="max-width: 60em">{"".join(parts)}</div>'


def _about(run: Run) -> str:
    return f"{text_format.headline(run.record)}, {text_format.clock(run.duration)}"


def _headline(run: Run, state: RunState) -> str:
    tone = text_format.TONES.get(state, "idle")
    colour = f' style="color: {COLOURS[tone]}"' if tone in COLOURS else ""
    word = f"<b{colour}>{SIGNS[tone]} {escape(text_format.state_word(state))}</b>"
    batch = escape(text_format.batch_line(run))
    verified = escape(text_format.verified(run.view))
    aside = " &nbsp;·&nbsp; ".join(filter(None, [batch, verified, f"run {escape(run.id)}"]))
    about = escape(_about(run))
    return f'<p style="margin: 4px 0">{word} &nbsp; {about}<br><small>{aside}</small></p>'


def _notices(run: Run) -> str:
    style = "white-space: pre-wrap"  # a report of a hang has lines
    texts = text_format.notices(run.view)
    items = "".join(f'<li style="{style}">{_with_code(text)}</li>' for text in texts)
    if not items:
        return ""
    return (
        f'<ul style="margin: 6px 0; padding: 2px 10px; list-style: none; '
        f'border-left: 3px solid {COLOURS["note"]}">{items}</ul>'
    )


def _failure(failure: Cause | None) -> str:
    if not failure:
        return ""
    headline = f"{failure.origin} failed" if failure.origin else "The run failed"
    shown = [failure.error, *([""] if failure.context else [])]
    for line in failure.context:
        shown.append(f"{'→' if line.failing else ' '} {line.number:>3}  {line.text}")
    hints = [("Likely cause", failure.explanation), ("Try", failure.remedy)]
    advice = "".join(_line(f"<b>{label}:</b> {_with_code(text)}") for label, text in hints if text)
    return (
        f'<div style="margin: 6px 0; padding: 2px 10px; border-left: 3px solid {COLOURS["bad"]}">'
        f"<b>{escape(headline)}</b>{_pre(_marked(shown))}{advice}</div>"
    )


def _marked(lines: list[str]) -> str:
    """Return lines as HTML; the line with an arrow is bold."""
    texts = [f"<b>{escape(t)}</b>" if t.startswith("→") else escape(t) for t in lines]
    return "\n".join(texts)


def _pre(html: str) -> str:
    style = "margin: 0; white-space: pre-wrap; background: none; color: inherit"
    return f'<pre style="{style}">{html}</pre>'


def _with_code(text: str) -> str:
    """Return HTML of a text in which code is between backticks, as in Markdown."""
    return re.sub("`([^`\n]+)`", r"<code>\1</code>", escape(text))


def _line(html: str) -> str:
    return f'<p style="margin: 2px 0">{html}</p>'


def _curves(run: Run) -> str:
    names = _metrics(run)
    view = run.view
    drawn = names[:CURVES] + [name for name in RATES if len(view.curves.get(name, ()))]
    cells = [_curve(name, view.curves[name]) for name in drawn]
    if len(names) > CURVES:
        cells.append(f"<p><small>{len(names) - CURVES} more in {_code(run, 'metrics')}</small></p>")
    speed = throughput(run)
    text = "; ".join(filter(None, [_cost(speed), speed.message]))
    if text:
        cells.append(f'<p style="margin: 2px 0"><small>{escape(text)}</small></p>')
    return f"<div>{''.join(cells)}</div>" if cells else ""


def _curve(name: str, curve: Curve) -> str:
    label = escape(text_format.plain(name))
    lines = "".join(
        f'<polyline points="{points}" fill="none" stroke="{COLOURS["line"]}" '
        f'stroke-width="1.5" stroke-linejoin="round" stroke-linecap="round"/>'
        for points in polylines(*downsample(*curve.arrays(), POINTS), WIDTH, HEIGHT)
    )
    svg = (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{label}" style="display: block; margin-top: 2px">{lines}</svg>'
    )
    return (
        f'<div style="display: inline-block; margin: 4px 20px 4px 0; vertical-align: top">'
        f"<small>{label}</small> &nbsp;<b>{escape(_course(curve))}</b>{svg}</div>"
    )


def _tensorboard(run: Run) -> str:
    """Return what to type to see the run in TensorBoard, if it has logged for it."""
    commands = map(tensorboard_command, shown_folders(run.view.tensorboard).values())
    return "".join(
        _line(f"<small>TensorBoard: <code>{escape(command)}</code></small>") for command in commands
    )


def _shards(run: Run) -> str:
    """Return which rank stores which layer, to be unfolded."""
    table = run.shards
    if not table.rows:
        return ""
    title = f"Which rank holds what: {in_short(table)}"
    return f"<details><summary>{escape(title)}</summary>{as_html(table)}</details>"


def _profile(run: Run) -> str:
    """Return what the ranks spent the time of profiled steps on, to be unfolded."""
    table = run.profile
    if not table.rows:
        return ""
    title = f"Profile of {profile_rendering.in_short(table)}"
    html = profile_rendering.as_html(table)
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def _ranks(run: Run) -> str:
    """Return how each rank ended, if one failed or has a warning."""
    if run.record.nodes > 1:
        return _nodes(run)
    shown = _rows(run)
    if all(row.tone != "bad" and not row.warning for row in shown):
        return ""
    listed = ", ".join(
        f"rank {row.rank} {row.label}" + (f" ({row.warning})" if row.warning else "")
        for row in shown
    )
    return f"<p><small>{escape(listed)}</small></p>"


def _nodes(run: Run) -> str:
    """Return the nodes of the run, to be unfolded; unfolded where one has failed or warns."""
    shown = node_rows(run, run.view.last_time)
    is_bad = any(row.tone == "bad" or row.warning for row in shown)
    lines = "".join(f"<li>{escape(line)}</li>" for line in node_lines(shown))
    title = f"<summary>{format_count(len(shown), 'node')}</summary>"
    opened = " open" if is_bad else ""
    return f"<details{opened}>{title}<ul><small>{lines}</small></ul></details>"


def _course(curve: Curve) -> str:
    """Return the first and last value of a curve: ``2.303 → 0.1235``."""
    _, values = curve.arrays()
    first, last = text_format.number(float(values[0])), text_format.number(float(values[-1]))
    return last if first == last else f"{first} → {last}"
