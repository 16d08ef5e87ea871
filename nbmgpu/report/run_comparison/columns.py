"""The columns of the table of several runs: settings, results and metrics."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from nbmgpu.formatting import format_bytes
from nbmgpu.report import text_format
from nbmgpu.report.best_value import Best, best_value
from nbmgpu.report.curves import RATES
from nbmgpu.runs.run import Run

LEFT_OUT = ("name", "tag", "strategy", "engine")
"""Options that have a column of their own, or are labels, which may have changed since."""

RECORDED = {"mesh", "nodes"}
"""Options that have a column even where all have their default."""

Group = Literal["setting", "result", "metric"]


@dataclass(frozen=True)
class Cell:
    """The value of one run: as text, and as a number to sort by, if it is one."""

    text: str
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """One property of all runs.

    Attributes:
        group: what kind of property.
        name: its title.
        cells: one for each run; its text is empty where it is unknown.
        differs: whether not all are equal.
        best: which value is the best one, if any is.
    """

    group: Group
    name: str
    cells: list[Cell]
    differs: bool
    best: Best = ""


def columns(runs: Sequence[Run], metrics: Sequence[str]) -> list[Column]:
    """Return the columns that have a value; those that differ come first."""
    found = [*_settings(runs), *_of_metrics(runs, metrics), *_results(runs)]
    found = [column for column in found if any(cell.text for cell in column.cells)]
    return sorted(_with_own_names(found), key=lambda column: not column.differs)


def _with_own_names(columns: Sequence[Column]) -> list[Column]:
    """Return the columns; a metric that is called as a setting or a result gets a longer name."""
    count = Counter(column.name for column in columns)
    return [
        dataclasses.replace(column, name=f"{column.name} ({column.group})")
        if count[column.name] > 1
        else column
        for column in columns
    ]


def _column(group: Group, name: str, cells: Iterable[Cell], best: Best = "") -> Column:
    listed = list(cells)
    return Column(group, name, listed, len({cell.text for cell in listed}) > 1, best)


def _settings(runs: Sequence[Run]) -> list[Column]:
    records = [run.record for run in runs]
    values = [record.options.values for record in records]
    names = dict.fromkeys(name for each in values for name in each if name not in LEFT_OUT)
    texts = {name: [_setting(each.get(name)) for each in values] for name in names}
    notebooks = [text_format.plain(record.kernel.notebook) for record in records]
    return [
        _column("setting", "strategy", (Cell(r.options.strategy) for r in records)),
        _column("setting", "engine", (Cell(r.options.engine) for r in records)),
        _column("setting", "ranks", (Cell(str(r.world_size), r.world_size) for r in records)),
        _column("setting", "devices", (Cell(text_format.device_names(r.devices)) for r in records)),
        *(
            _column("setting", f"--{name.replace('_', '-')}", map(_typed, of_runs))
            for name, of_runs in texts.items()
            if name in RECORDED or len({*of_runs}) > 1
        ),
        _column("setting", "notebook", map(Cell, notebooks)),
    ]


def _setting(value: object) -> str:
    """Return the value of an option as it is typed; empty for none."""
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text_format.plain(text)


def _typed(text: str) -> Cell:
    try:
        return Cell(text, float(text))
    except ValueError:
        return Cell(text)


def _results(runs: Sequence[Run]) -> list[Column]:
    def numbers(
        name: str,
        value: Callable[[Run], float],
        text: Callable[[float], str],
        best: Best = "",
    ) -> Column:
        found = [value(run) for run in runs]
        return _column("result", name, (Cell(text(v), v) if v else Cell("") for v in found), best)

    def started(seconds: float) -> str:
        return datetime.datetime.fromtimestamp(seconds).strftime("%d %b %H:%M:%S")

    states = (Cell(text_format.state_word(run.state)) for run in runs)
    return [
        _column("result", "state", states),
        numbers("started", lambda run: run.record.created, started),
        numbers("duration", lambda run: run.duration, text_format.clock),
        numbers("steps", _steps, lambda steps: f"{steps:,.0f}"),
        numbers("step time", _step_time, text_format.span, "lowest"),
        *(numbers(rate, partial(_mean, rate), text_format.number, "highest") for rate in RATES),
        numbers("memory of a rank", partial(_peak, "memory"), _bytes, "lowest"),
        numbers("GPU memory of a rank", partial(_peak, "gpu_memory"), _bytes, "lowest"),
    ]


def _bytes(size: float) -> str:
    return format_bytes(int(size))


def _steps(run: Run) -> float:
    return max((rank.step for rank in run.view.ranks), default=0)


def _step_time(run: Run) -> float:
    """Return the median over heartbeats, of the slowest rank, in seconds."""
    known = [rank.step_times for rank in run.view.ranks if rank.step_times]
    return max((float(np.median([t.step_time for t in times])) for times in known), default=0.0)


def _mean(rate: str, run: Run) -> float:
    """Return the mean of a rate over the run."""
    curve = run.view.curves.get(rate)
    values = curve.arrays()[1] if curve is not None and len(curve) else np.zeros(0)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else 0.0


def _peak(memory: str, run: Run) -> float:
    """Return the most that a heartbeat has seen of a kind of memory, of any rank, in bytes."""
    known = [getattr(beat, memory) for rank in run.view.ranks for beat in rank.step_times]
    return max(0, *known) if known else 0


def _of_metrics(runs: Sequence[Run], metrics: Sequence[str]) -> list[Column]:
    """Return the final and the best value of each metric."""
    found = []
    for name in metrics:
        if name in RATES:
            continue
        best = best_value(name)
        values = [_finite_values(run, name) for run in runs]
        title = text_format.plain(name)
        final = [_final(run, name) for run in runs]
        peak = [_value(v.max() if best == "highest" else v.min()) if len(v) else Cell("")
                for v in values]  # fmt: skip
        found.append(_column("metric", title, final, best))
        if best:
            found.append(_column("metric", f"{best} {title}", peak, best))
    return found


def _final(run: Run, name: str) -> Cell:
    """Return the last value of a metric; one that is not finite is a text."""
    curve = run.view.curves.get(name)
    if curve is None or not len(curve):
        return Cell("")
    last = float(curve.arrays()[1][-1])
    return _value(last) if math.isfinite(last) else Cell(text_format.number(last))


def _finite_values(run: Run, name: str) -> np.ndarray:
    curve = run.view.curves.get(name)
    values = curve.arrays()[1] if curve is not None and len(curve) else np.zeros(0)
    return values[np.isfinite(values)]


def _value(value: float) -> Cell:
    return Cell(text_format.number(float(value)), float(value))
