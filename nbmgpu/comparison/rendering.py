"""Renders a ``Comparison`` as text, Markdown, and HTML without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING, TypeVar

from nbmgpu.formatting import format_bytes, format_communication, format_count
from nbmgpu.report.text_format import number, span

from .notes import notes, reasons
from .svg_chart import bar_chart, line_chart
from .trial import Trial

if TYPE_CHECKING:
    from .comparison import Comparison
    from .measurements import StepTiming
    from .runner import RunProgress

HEADER = (
    "", "nodes", "ranks", "step", "samples/s", "speed-up", "efficiency", "sent per step",
    "peak memory", "held", "loss", "off by", "sent", "start-up",
)  # fmt: skip

IMPLAUSIBLE = 1.3
"""Efficiency that is implausible for equal devices; caches may give a little above 1."""

GOOD, BAD = "#2e9e44", "#e5484d"

V = TypeVar("V")


def _or_dash(value: V | None, words: Callable[[V], str]) -> str:
    return "-" if value is None else words(value)


def table(comparison: Comparison) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the header and the rows as text; nodes have a column if their number is given."""
    rows = [HEADER, *map(cells, comparison.rows)]
    if not comparison.request.has_nodes:
        rows = [(name, *others) for name, _, *others in rows]
    return rows[0], rows[1:]


def cells(row: Trial) -> tuple[str, ...]:
    """Return a row as text, in the order of ``HEADER``."""
    return (
        row.name,
        str(row.nodes),
        str(row.ranks or "-"),
        _or_dash(row.timing.step_time, span),
        _or_dash(row.timing.samples_per_second, number),
        _or_dash(row.speed_up, lambda x: f"{x:.2f}x"),
        _or_dash(row.efficiency, lambda x: f"{x:.0%}"),
        _sent(row.timing),
        _or_dash(row.memory.peak, format_bytes),
        _or_dash(row.memory.held, format_bytes),
        _or_dash(row.loss.value, number),
        "-" if row.is_baseline else _or_dash(row.loss.difference, _difference),
        _or_dash(row.launch.sent, format_bytes),
        _or_dash(row.launch.start_up, span),
    )


def _sent(timing: StepTiming) -> str:
    if timing.sent is None:
        return "-"
    return format_communication(timing.sent, timing.collectives or 0) or format_bytes(timing.sent)


def _difference(value: float) -> str:
    return "0" if value == 0 else f"{value:+.1e}"


def heading(comparison: Comparison) -> str:
    """Return the title: what was compared."""
    return f"{comparison.request.command} · {comparison.request.steps} optimizer steps each"


def closing(comparison: Comparison) -> list[str]:
    """Return the conclusion, in a few sentences."""
    return [*_about_best(comparison), *_about_nodes(comparison)]


def _about_best(comparison: Comparison) -> list[str]:
    best = comparison.best
    if best is None:
        return [_no_best(comparison)]
    ranks = format_count(best.ranks, "rank")
    if best.nodes > 1:
        ranks += f" of {format_count(best.nodes, 'node')}"
    if comparison.faster_on_one_device:
        return [
            "Fastest: one device.",
            f"The best of several ranks is {best.name} on {ranks}, at {best.speed_up:.2f} times "
            "its speed.",
        ]
    equal = best.loss.difference is not None and not best.loss.explanation
    first = "Fastest with the loss of one device" if equal else "Fastest"
    text = f"{first}: {best.name} on {ranks}"
    if best.speed_up is not None:
        text += f", {best.speed_up:.2f} times one device"
        if (best.efficiency or 0.0) > IMPLAUSIBLE:
            text += ", which is implausible: other processes disturbed the times"
    return [f"{text}."]


def _about_nodes(comparison: Comparison) -> Iterable[str]:
    """Yield how much faster more nodes are than the fewest, with as many ranks on each."""
    rows = {row.nodes: row for row in comparison.rows if row.is_timed and row.sharded}
    if comparison.request.kind != "scale" or not rows:
        return
    fewest = rows.pop(min(rows))
    for row in rows.values():
        is_alike = row.ranks * fewest.nodes == fewest.ranks * row.nodes
        if is_alike and (ratio := row.timing.speed_up(fewest.timing)):
            times = row.nodes / fewest.nodes
            yield (
                f"{format_count(row.nodes, 'node')}: {ratio:.2f} times the speed of "
                f"{format_count(fewest.nodes, 'node')}, {ratio / times:.0%} of {times:g} times."
            )


def _no_best(comparison: Comparison) -> str:
    rows = [row for row in comparison.rows if not row.is_baseline]
    if comparison.left_out and not rows:
        return f"{comparison.why}: there is nothing to compare."
    if not rows:
        return "Nothing to compare yet."
    if any(not row.sharded for row in rows):
        return "Ranks did not share the work, so there is no fastest."
    if all(row.ranks == 1 for row in rows):
        return "No run had several ranks."
    if any(row.state == "finished" and row.is_timed for row in rows):
        return "No run finished with the loss of one device."
    return "No run on several ranks finished with enough steps to time."


def as_text(comparison: Comparison) -> str:
    """Return aligned columns, the conclusion and the notes."""
    header, rows = table(comparison)
    marks = ["->" if row is comparison.best else "" for row in comparison.rows]
    shown = [("", *header), *((mark, *row) for mark, row in zip(marks, rows, strict=True))]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in shown
    ]
    conclusion = [*closing(comparison), *filter(None, [comparison.line])]
    below = [f"- {note}" for note in (*reasons(comparison.rows), *notes(comparison))]
    return "\n".join([heading(comparison), "", *lines, "", *conclusion, *below])


def as_markdown(comparison: Comparison) -> str:
    """Return a Markdown table, the conclusion and the notes."""
    header, rows = table(comparison)
    lines = [f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rows)]
    line = [f"    {comparison.line}", ""] if comparison.line else []
    conclusion = " ".join(closing(comparison))
    below = [f"- {note}" for note in (*reasons(comparison.rows), *notes(comparison))]
    return "\n".join([*lines, "", conclusion, "", *line, *below])


def as_html(comparison: Comparison, running: RunProgress | None = None) -> str:
    """Return a table and a chart; with ``running``, a row for the current run."""
    header, texts = table(comparison)
    head = "".join(f"<th style='text-align:right'>{escape(name)}</th>" for name in header[1:])
    rows = "".join(
        _row(row, text, row is comparison.best)
        for row, text in zip(comparison.rows, texts, strict=True)
    )
    now = _running(running, comparison.request.steps, len(header)) if running else ""
    parts = [
        f"<p style='margin:4px 0'><code>{escape(comparison.request.command)}</code><br><small>"
        f"{comparison.request.steps} optimizer steps each</small></p>"
        f"<div style='overflow-x:auto'><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}"
        f"{now}</tbody></table></div>",
        _chart(comparison),
    ]
    if running is None:
        part_way = reasons(row for row in comparison.rows if row.is_timed)
        parts += [_conclusion(comparison), _listed([*part_way, *notes(comparison)])]
    return f"<div style='max-width:75em;overflow-x:auto'>{''.join(parts)}</div>"


def _row(row: Trial, text: Iterable[str], best: bool) -> str:
    name, *others = map(escape, text)
    if best:
        name = f"<b style='color:{GOOD}'>{name}</b>"
    if row.reason:
        state = f"<b style='color:{BAD}'>{escape(row.state)}</b>"
        if not row.is_timed:
            first = len(others) - len(HEADER[HEADER.index("step") :])
            size = "".join(map(_cell, others[:first]))  # nodes, ranks
            why = f"<td colspan='{len(others) - first}' style='text-align:left'>{state}: "
            return f"<tr>{_cell(name, 'left')}{size}{why}{escape(row.reason)}</td></tr>"
        name = f"{name} ({state})"
    return f"<tr>{_cell(name, 'left')}{''.join(map(_cell, others))}</tr>"


def _cell(html: str, side: str = "right") -> str:
    return f"<td style='text-align:{side};white-space:nowrap'>{html}</td>"


def _running(running: RunProgress, steps: int, columns: int) -> str:
    how_far = f"step {running.step} of {steps}" if running.step else running.state
    words = escape(f"{how_far}, {running.seconds:.0f} s")
    bar = f"<progress max='{steps}' value='{running.step}'></progress>"
    name = _cell(escape(running.name), "left")
    rest = f"<td colspan='{columns - 2}' style='text-align:left'>{bar} {words}</td>"
    return f"<tr>{name}<td></td>{rest}</tr>"


def _chart(comparison: Comparison) -> str:
    timed = [row for row in comparison.rows if row.is_timed]
    if len(timed) < 2:
        return ""
    if comparison.request.kind == "scale":
        points = [(row.ranks, row.speed_up) for row in timed if row.speed_up is not None]
        return line_chart("speed-up by ranks", points) if points else ""
    colour = {row.name: GOOD for row in timed if row is comparison.best}
    times = [
        (row.name, row.timing.step_time or 0.0, span(row.timing.step_time or 0.0)) for row in timed
    ]
    drawn = [bar_chart("time per step", times, colour)]
    held = [
        (row.name, float(row.memory.held), format_bytes(row.memory.held))
        for row in timed
        if row.memory.held
    ]
    if held:
        drawn.append(bar_chart("held by a rank", held, colour))
    return f"<div>{''.join(drawn)}</div>"


def _conclusion(comparison: Comparison) -> str:
    html = f"<p style='margin:6px 0'><b>{escape(' '.join(closing(comparison)))}</b>"
    if line := comparison.line:
        # The JupyterLab extension shows the button and writes the line.
        html += (
            f"<br><code>{escape(line)}</code> <button class='nbmgpu-write-line' type='button' "
            f"hidden data-line='{escape(line)}'>Put this line on the cell</button>"
        )
    return f"{html}</p>"


def _listed(lines: Iterable[str]) -> str:
    items = "".join(f"<li><small>{escape(line)}</small></li>" for line in lines)
    return f"<ul style='margin:4px 0'>{items}</ul>" if items else ""
