"""A ``Comparison`` as text, as Markdown, and as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from typing import TYPE_CHECKING, TypeVar

from nbmgpu.formatting import format_bytes, format_count
from nbmgpu.report.text_format import number, span

from .svg_chart import bars, course
from .trial import Trial

if TYPE_CHECKING:
    from .comparison import Comparison
    from .runner import Running

HEADER = (
    "", "ranks", "step", "samples/s", "speed-up", "efficiency", "peak memory", "held", "loss",
    "off by", "shipped", "start-up",
)  # fmt: skip

BEYOND = 1.3
"""Efficiency above which no two equal devices work; caches may give a little."""

BUSY = 1.5
"""Processes for each core, above which runs wait for others."""

GOOD, BAD = "#2e9e44", "#e5484d"

V = TypeVar("V")


def _or_dash(value: V | None, words: Callable[[V], str]) -> str:
    return "-" if value is None else words(value)


def cells(row: Trial) -> tuple[str, ...]:
    """Return a row as words, in the order of ``HEADER``."""
    return (
        row.name,
        str(row.ranks or "-"),
        _or_dash(row.step_time, span),
        _or_dash(row.samples_per_second, number),
        _or_dash(row.speed_up, lambda x: f"{x:.2f}x"),
        _or_dash(row.efficiency, lambda x: f"{x:.0%}"),
        _or_dash(row.peak_memory, format_bytes),
        _or_dash(row.held_memory, format_bytes),
        _or_dash(row.loss, number),
        "-" if row.alone else _or_dash(row.loss_difference, _difference),
        _or_dash(row.shipped, format_bytes),
        _or_dash(row.start_up, span),
    )


def _difference(value: float) -> str:
    return "0" if value == 0 else f"{value:+.1e}"


def heading(comparison: Comparison) -> str:
    """Return what was compared."""
    return f"{comparison.request.command} · {comparison.request.steps} optimizer steps each"


def closing(comparison: Comparison) -> list[str]:
    """Return what the rows come to, in a sentence or two."""
    best, alone = comparison.best, comparison.alone
    if best is None:
        return [_no_best(comparison)]
    ranks = format_count(best.ranks, "rank")
    equal = best.loss_difference is not None and not best.chance
    first = "Fastest with one device's loss" if equal else "Fastest"
    text = f"{first}: {best.name} on {ranks}"
    if best.speed_up is not None:
        text += f", {best.speed_up:.2f} times one device"
        if (best.efficiency or 0.0) > BEYOND:
            text += ", which is not possible: others were at work here, do not trust the times"
    lines = [f"{text}."]
    if alone is not None and alone.sound and (best.speed_up or 1.0) < 1.0:
        lines.append("One device is faster than that here.")
    return lines


def _no_best(comparison: Comparison) -> str:
    rows = [row for row in comparison.rows if not row.alone]
    if comparison.left_out and not rows:
        return f"{comparison.why}: there is nothing to compare."
    if not rows:
        return "Nothing to compare yet."
    if any(not row.split for row in rows):
        return "Ranks have not shared the work, so there is no fastest."
    if all(row.ranks == 1 for row in rows):
        return "No run had several ranks."
    if any(row.state == "finished" and row.step_time is not None for row in rows):
        return "Nothing ran to its end with one device's loss."
    return "No run on several ranks came to its end with steps that could be timed."


def notes(comparison: Comparison) -> list[str]:
    """Return what one must know to read the rows."""
    rows = comparison.rows
    return [
        *_about_steps(comparison),
        *_about_shares(rows),
        *_about_losses(rows),
        *_about_times(comparison),
        *_about_memory(comparison),
        *_about_cores(comparison),
        *_about_devices(comparison),
        *_about_others(comparison),
        *_about_the_end(comparison),
    ]


def reasons(rows: Iterable[Trial]) -> list[str]:
    """Return why rows were not measured to the end."""
    return [f"{_whose(row)}: {row.reason}" for row in rows if row.reason]


def _whose(row: Trial) -> str:
    return row.name if row.alone or not row.ranks else f"{row.name} on {row.ranks}"


def _about_steps(comparison: Comparison) -> Iterable[str]:
    taken = sorted({row.steps for row in comparison.rows if row.step_time is not None})
    asked = comparison.request.steps
    if taken and taken[-1] < asked:
        yield f"The cell took {taken[-1]} steps, fewer than the {asked} that were asked for."
    if len(taken) > 1:
        counts = ", ".join(map(str, taken))
        yield f"Runs took different numbers of steps ({counts}): their losses are not comparable."


def _about_shares(rows: Iterable[Trial]) -> Iterable[str]:
    whole = [_whose(row) for row in rows if not row.split]
    if whole:
        yield (
            f"{', '.join(whole)}: no training loader was split, so every rank did the whole work "
            "of one device. Iterate over a torch DataLoader to share it."
        )


def _about_losses(rows: Iterable[Trial]) -> Iterable[str]:
    for row in rows:
        if row.alone or row.loss_difference is None:
            continue
        if row.chance:
            yield f"{_whose(row)} {row.chance}: its loss need not be one device's."
        elif not row.agrees:
            yield f"{_whose(row)}: its loss differs from one device's by more than rounding."


def _about_times(comparison: Comparison) -> Iterable[str]:
    timed = [row for row in comparison.rows if row.step_time is not None]
    if timed:
        steps, left_out = max((row.steps, row.warm_up) for row in timed)
        first = "the first is" if left_out == 1 else f"the first {left_out} are"
        yield (
            f"A step is the median of {steps - left_out} of {steps}; {first} warm-up. "
            "Loss is that of the last step's batch, start-up the time until all ranks run the cell."
        )


def _about_memory(comparison: Comparison) -> Iterable[str]:
    if any(row.peak_memory is not None for row in comparison.rows):
        yield (
            "Held is what the tensors of a rank take between steps, peak memory the most that "
            "torch had on its GPU."
            if comparison.on_gpu
            else "Held is what the tensors of a rank take between steps, as they would on a GPU. "
            "Peak memory is the process's, beyond what it had before the cell's data came; what "
            "its heap and gloo keep is in it, so it is no GPU's."
        )


def _about_cores(comparison: Comparison) -> Iterable[str]:
    if comparison.on_gpu:
        return
    cores = comparison.machine.cores
    most = max((row.ranks for row in comparison.rows if row.step_time is not None), default=1)
    if most > 1:
        shared = f"Ranks share {format_count(cores, 'core')}, and one device has them all"
        if most > cores:
            shared += f"; {most} ranks are more than there are cores, and wait for one another"
        yield f"{shared}: times on a CPU say nothing about GPUs. Losses, and what is held, do."


def _about_devices(comparison: Comparison) -> Iterable[str]:
    gpus = [e.options.gpus for e in comparison.request.entries if e.options and not e.alone]
    listed = next((each for each in gpus if isinstance(each, tuple)), None)
    if comparison.request.kind == "compare" and listed and len(listed) > 1:
        names = ",".join(map(str, listed))
        yield (
            f"--gpus {names} are devices, {len(listed)} ranks in all; numbers of ranks are "
            f"compared by %%mgpu scale --gpus {names}."
        )


def _about_others(comparison: Comparison) -> Iterable[str]:
    if comparison.load > BUSY:
        yield (
            f"Others are at work on this machine ({comparison.load:.1f} processes for each core "
            "before the first run): do not trust the times."
        )


def _about_the_end(comparison: Comparison) -> Iterable[str]:
    if comparison.left_out:
        yield f"{comparison.why}: {format_count(comparison.left_out, 'run')} not made."


def as_text(comparison: Comparison) -> str:
    """Return aligned columns and what is to be said about them."""
    marked = [("->" if row is comparison.best else "", *cells(row)) for row in comparison.rows]
    table = [("", *HEADER), *marked]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        "  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    said = [*closing(comparison), *filter(None, [comparison.line])]
    below = [f"- {note}" for note in (*reasons(comparison.rows), *notes(comparison))]
    return "\n".join([heading(comparison), "", *lines, "", *said, *below])


def as_markdown(comparison: Comparison) -> str:
    """Return a table of Markdown, and what is to be said about it."""
    table = [HEADER, ("---",) * len(HEADER), *map(cells, comparison.rows)]
    lines = [f"| {' | '.join(row)} |" for row in table]
    line = [f"    {comparison.line}", ""] if comparison.line else []
    said = " ".join(closing(comparison))
    below = [f"- {note}" for note in (*reasons(comparison.rows), *notes(comparison))]
    return "\n".join([*lines, "", said, "", *line, *below])


def as_html(comparison: Comparison, running: Running | None = None) -> str:
    """Return a table and a chart; with ``running``, the run under way below the others."""
    head = "".join(f"<th style='text-align:right'>{escape(name)}</th>" for name in HEADER[1:])
    rows = "".join(_row(row, row is comparison.best) for row in comparison.rows)
    parts = [
        f"<p style='margin:4px 0'><code>{escape(comparison.request.command)}</code><br><small>"
        f"{comparison.request.steps} optimizer steps each</small></p>"
        f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}"
        f"{_running(running, comparison.request.steps) if running else ''}</tbody></table>",
        _chart(comparison),
    ]
    if running is None:
        part_way = reasons(row for row in comparison.rows if row.step_time is not None)
        parts += [_conclusion(comparison), _listed([*part_way, *notes(comparison)])]
    return f"<div style='max-width:75em'>{''.join(parts)}</div>"


def _row(row: Trial, best: bool) -> str:
    name, *others = map(escape, cells(row))
    if best:
        name = f"<b style='color:{GOOD}'>{name}</b>"
    if row.reason:
        state = f"<b style='color:{BAD}'>{escape(row.state)}</b>"
        if row.step_time is None:
            why = f"<td colspan='{len(others) - 1}' style='text-align:left'>{state}: "
            return f"<tr>{_cell(name, 'left')}{_cell(others[0])}{why}{escape(row.reason)}</td></tr>"
        name = f"{name} ({state})"
    return f"<tr>{_cell(name, 'left')}{''.join(map(_cell, others))}</tr>"


def _cell(html: str, side: str = "right") -> str:
    return f"<td style='text-align:{side};white-space:nowrap'>{html}</td>"


def _running(running: Running, steps: int) -> str:
    how_far = f"step {running.step} of {steps}" if running.step else running.state
    words = escape(f"{how_far}, {running.seconds:.0f} s")
    bar = f"<progress max='{steps}' value='{running.step}'></progress>"
    name = _cell(escape(running.name), "left")
    rest = f"<td colspan='{len(HEADER) - 2}' style='text-align:left'>{bar} {words}</td>"
    return f"<tr>{name}<td></td>{rest}</tr>"


def _chart(comparison: Comparison) -> str:
    timed = [row for row in comparison.rows if row.step_time is not None]
    if len(timed) < 2:
        return ""
    if comparison.request.kind == "scale":
        points = [(row.ranks, row.speed_up) for row in timed if row.speed_up is not None]
        return course("speed-up by ranks", points)
    colour = {row.name: GOOD for row in timed if row is comparison.best}
    times = [(row.name, row.step_time or 0.0, span(row.step_time or 0.0)) for row in timed]
    drawn = [bars("time per step", times, colour)]
    held = [
        (row.name, float(row.held_memory), format_bytes(row.held_memory))
        for row in timed
        if row.held_memory
    ]
    if held:
        drawn.append(bars("held by a rank", held, colour))
    return f"<div>{''.join(drawn)}</div>"


def _conclusion(comparison: Comparison) -> str:
    said = f"<p style='margin:6px 0'><b>{escape(' '.join(closing(comparison)))}</b>"
    if line := comparison.line:
        # JupyterLab, with nbmgpu's extension, shows the button and writes the line.
        said += (
            f"<br><code>{escape(line)}</code> <button class='nbmgpu-write-line' type='button' "
            f"hidden data-line='{escape(line)}'>Put this line on the cell</button>"
        )
    return f"{said}</p>"


def _listed(lines: Iterable[str]) -> str:
    items = "".join(f"<li><small>{escape(line)}</small></li>" for line in lines)
    return f"<ul style='margin:4px 0'>{items}</ul>" if items else ""
