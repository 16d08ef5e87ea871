"""Renders a ``Comparison`` as text, Markdown, and HTML without scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING, TypeVar

from nbmgpu.formatting import format_bytes, format_count
from nbmgpu.report.text_format import number, span

from .svg_chart import bar_chart, line_chart
from .trial import Trial

if TYPE_CHECKING:
    from .comparison import Comparison
    from .runner import RunProgress

HEADER = (
    "", "ranks", "step", "samples/s", "speed-up", "efficiency", "sent per step", "peak memory",
    "held", "loss", "off by", "sent", "start-up",
)  # fmt: skip

IMPLAUSIBLE = 1.3
"""Efficiency that is implausible for equal devices; caches may give a little above 1."""

BUSY = 1.5
"""Load average per core above which other processes disturb the times."""

GOOD, BAD = "#2e9e44", "#e5484d"

V = TypeVar("V")


def _or_dash(value: V | None, words: Callable[[V], str]) -> str:
    return "-" if value is None else words(value)


def cells(row: Trial) -> tuple[str, ...]:
    """Return a row as text, in the order of ``HEADER``."""
    return (
        row.name,
        str(row.ranks or "-"),
        _or_dash(row.timing.step_time, span),
        _or_dash(row.timing.samples_per_second, number),
        _or_dash(row.speed_up, lambda x: f"{x:.2f}x"),
        _or_dash(row.efficiency, lambda x: f"{x:.0%}"),
        _or_dash(row.timing.sent, format_bytes),
        _or_dash(row.memory.peak, format_bytes),
        _or_dash(row.memory.held, format_bytes),
        _or_dash(row.loss.value, number),
        "-" if row.is_baseline else _or_dash(row.loss.difference, _difference),
        _or_dash(row.launch.sent, format_bytes),
        _or_dash(row.launch.start_up, span),
    )


def _difference(value: float) -> str:
    return "0" if value == 0 else f"{value:+.1e}"


def heading(comparison: Comparison) -> str:
    """Return the title: what was compared."""
    return f"{comparison.request.command} · {comparison.request.steps} optimizer steps each"


def closing(comparison: Comparison) -> list[str]:
    """Return the conclusion, in a sentence or two."""
    best = comparison.best
    if best is None:
        return [_no_best(comparison)]
    ranks = format_count(best.ranks, "rank")
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


def notes(comparison: Comparison) -> list[str]:
    """Return notes that explain the rows."""
    rows = comparison.rows
    return [
        *_about_steps(comparison),
        *_about_sharding(rows),
        *_about_losses(rows),
        *_about_times(comparison),
        *_about_memory(comparison),
        *_about_cores(comparison),
        *_about_devices(comparison),
        *_about_load(comparison),
        *_about_left_out(comparison),
    ]


def reasons(rows: Iterable[Trial]) -> list[str]:
    """Return why measurements are incomplete."""
    return [f"{_label(row)}: {row.reason}" for row in rows if row.reason]


def _label(row: Trial) -> str:
    return row.name if row.is_baseline or not row.ranks else f"{row.name} on {row.ranks}"


def _about_steps(comparison: Comparison) -> Iterable[str]:
    taken = sorted({row.timing.steps for row in comparison.rows if row.is_timed})
    asked = comparison.request.steps
    if taken and taken[-1] < asked:
        yield f"The cell took {taken[-1]} steps, fewer than the {asked} requested."
    if len(taken) > 1:
        counts = ", ".join(map(str, taken))
        yield f"Runs took different numbers of steps ({counts}): their losses are not comparable."


def _about_sharding(rows: Iterable[Trial]) -> Iterable[str]:
    whole = [row for row in rows if not row.sharded]
    if sequences := [_label(row) for row in whole if row.name in ("sp", "cp")]:
        yield (
            f"{', '.join(sequences)}: no layer was called with a sequence that could be split, so "
            "every rank did all of the work."
        )
    if batches := [_label(row) for row in whole if row.name not in ("sp", "cp")]:
        yield (
            f"{', '.join(batches)}: no training loader was sharded, so every rank did all of the "
            "work. Iterate over a torch DataLoader to share it."
        )


def _about_losses(rows: Iterable[Trial]) -> Iterable[str]:
    for row in rows:
        if row.is_baseline or row.loss.difference is None:
            continue
        if row.loss.explanation:
            yield f"{_label(row)} {row.loss.explanation}: its loss may differ from one device's."
        elif not row.loss.agrees:
            yield f"{_label(row)}: its loss differs from one device's by more than rounding."


def _about_times(comparison: Comparison) -> Iterable[str]:
    timed = [row for row in comparison.rows if row.is_timed]
    if timed:
        steps, left_out = max((row.timing.steps, row.timing.warm_up) for row in timed)
        first = "the first is" if left_out == 1 else f"the first {left_out} are"
        yield (
            f"A step is the median of {steps - left_out} of {steps}; {first} warm-up. "
            "Loss is that of the last batch; start-up is the time until all ranks run the cell."
        )


def _about_memory(comparison: Comparison) -> Iterable[str]:
    if any(row.memory.peak is not None for row in comparison.rows):
        yield (
            "Held: tensors of a rank between steps. Peak memory: the most that torch allocated on "
            "its GPU."
            if comparison.on_gpu
            else "Held: tensors of a rank between steps, as on a GPU. Peak memory: of the process, "
            "above what it used before the cell's data arrived. It includes its heap and gloo, so "
            "it is not that of a GPU."
        )


def _about_cores(comparison: Comparison) -> Iterable[str]:
    if comparison.on_gpu:
        return
    cores = comparison.machine.cores
    most = max((row.ranks for row in comparison.rows if row.is_timed), default=1)
    if most > 1:
        shared = f"Ranks share {format_count(cores, 'core')}, and one device uses all of them"
        if most > cores:
            shared += f"; {most} ranks are more than the cores, and wait for one another"
        yield f"{shared}: CPU times do not predict GPU times. Losses and held memory carry over."


def _about_devices(comparison: Comparison) -> Iterable[str]:
    gpus = [e.options.gpus for e in comparison.request.entries if e.options and not e.is_baseline]
    listed = next((each for each in gpus if isinstance(each, tuple)), None)
    if comparison.request.kind == "compare" and listed and len(listed) > 1:
        names = ",".join(map(str, listed))
        yield (
            f"--gpus {names} selects {len(listed)} devices. To compare numbers of ranks: "
            f"%%mgpu scale --gpus {names}."
        )


def _about_load(comparison: Comparison) -> Iterable[str]:
    if comparison.load > BUSY:
        yield (
            f"Other processes were running ({comparison.load:.1f} per core before the first run): "
            "do not trust the times."
        )


def _about_left_out(comparison: Comparison) -> Iterable[str]:
    if comparison.left_out:
        yield f"{comparison.why}: {format_count(comparison.left_out, 'run')} not made."


def as_text(comparison: Comparison) -> str:
    """Return aligned columns, the conclusion and the notes."""
    marked = [("->" if row is comparison.best else "", *cells(row)) for row in comparison.rows]
    table = [("", *HEADER), *marked]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    conclusion = [*closing(comparison), *filter(None, [comparison.line])]
    below = [f"- {note}" for note in (*reasons(comparison.rows), *notes(comparison))]
    return "\n".join([heading(comparison), "", *lines, "", *conclusion, *below])


def as_markdown(comparison: Comparison) -> str:
    """Return a Markdown table, the conclusion and the notes."""
    table = [HEADER, ("---",) * len(HEADER), *map(cells, comparison.rows)]
    lines = [f"| {' | '.join(row)} |" for row in table]
    line = [f"    {comparison.line}", ""] if comparison.line else []
    conclusion = " ".join(closing(comparison))
    below = [f"- {note}" for note in (*reasons(comparison.rows), *notes(comparison))]
    return "\n".join([*lines, "", conclusion, "", *line, *below])


def as_html(comparison: Comparison, running: RunProgress | None = None) -> str:
    """Return a table and a chart; with ``running``, a row for the current run."""
    head = "".join(f"<th style='text-align:right'>{escape(name)}</th>" for name in HEADER[1:])
    rows = "".join(_row(row, row is comparison.best) for row in comparison.rows)
    parts = [
        f"<p style='margin:4px 0'><code>{escape(comparison.request.command)}</code><br><small>"
        f"{comparison.request.steps} optimizer steps each</small></p>"
        f"<div style='overflow-x:auto'><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}"
        f"{_running(running, comparison.request.steps) if running else ''}</tbody></table></div>",
        _chart(comparison),
    ]
    if running is None:
        part_way = reasons(row for row in comparison.rows if row.is_timed)
        parts += [_conclusion(comparison), _listed([*part_way, *notes(comparison)])]
    return f"<div style='max-width:75em;overflow-x:auto'>{''.join(parts)}</div>"


def _row(row: Trial, best: bool) -> str:
    name, *others = map(escape, cells(row))
    if best:
        name = f"<b style='color:{GOOD}'>{name}</b>"
    if row.reason:
        state = f"<b style='color:{BAD}'>{escape(row.state)}</b>"
        if not row.is_timed:
            why = f"<td colspan='{len(others) - 1}' style='text-align:left'>{state}: "
            return f"<tr>{_cell(name, 'left')}{_cell(others[0])}{why}{escape(row.reason)}</td></tr>"
        name = f"{name} ({state})"
    return f"<tr>{_cell(name, 'left')}{''.join(map(_cell, others))}</tr>"


def _cell(html: str, side: str = "right") -> str:
    return f"<td style='text-align:{side};white-space:nowrap'>{html}</td>"


def _running(running: RunProgress, steps: int) -> str:
    how_far = f"step {running.step} of {steps}" if running.step else running.state
    words = escape(f"{how_far}, {running.seconds:.0f} s")
    bar = f"<progress max='{steps}' value='{running.step}'></progress>"
    name = _cell(escape(running.name), "left")
    rest = f"<td colspan='{len(HEADER) - 2}' style='text-align:left'>{bar} {words}</td>"
    return f"<tr>{name}<td></td>{rest}</tr>"


def _chart(comparison: Comparison) -> str:
    timed = [row for row in comparison.rows if row.is_timed]
    if len(timed) < 2:
        return ""
    if comparison.request.kind == "scale":
        points = [(row.ranks, row.speed_up) for row in timed if row.speed_up is not None]
        return line_chart("speed-up by ranks", points)
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
