"""``RunComparison``: what is shown of several runs side by side."""

from __future__ import annotations

import datetime
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbmgpu.report import text_format
from nbmgpu.report.curves import ALL_POINTS, CURVES, POINTS, CurveLine, curve_line, curve_names
from nbmgpu.report.run_line import cell_title
from nbmgpu.report.stopping import stopping
from nbmgpu.report.views.status import RunStatus, run_status
from nbmgpu.runs.labels import RunLabels
from nbmgpu.runs.run import Run

from .axes import Axes, axes
from .cells import CellDifference, cell_differences
from .columns import Cell, Column, columns

if TYPE_CHECKING:
    import pandas as pd

MAX_RUNS = 32
"""Maximum number of runs in a comparison."""

MIN_POINTS = 100
"""Points that a curve has in any case, however many are drawn."""


@dataclass(frozen=True)
class ComparedRun:
    """A run of a comparison.

    Attributes:
        title: its name, else the first line of its cell, else strategy and ranks; with its time
            where another run is called the same.
        headline: strategy, world size and devices.
        created: in seconds since the epoch.
        axes: other positions of its steps than their number.
    """

    id: str
    title: str
    headline: str
    status: RunStatus
    created: float
    labels: RunLabels
    axes: Axes


@dataclass(frozen=True)
class MetricLines:
    """The curves of one metric: ``lines[i]`` is of the run at index ``runs[i]``."""

    name: str
    runs: list[int]
    lines: list[CurveLine]


@dataclass(frozen=True)
class RunComparison:
    """Several runs side by side.

    Attributes:
        runs: in the order of the request.
        columns: of the table; each has a cell for each run, and those that differ come first.
        metrics: a chart for each metric, the loss first.
        hidden: the number of metrics left out.
        cells: how the cell of each run differs from that of the first run.
        missing: ids of requested runs that do not exist any more.
    """

    runs: list[ComparedRun]
    columns: list[Column]
    metrics: list[MetricLines]
    hidden: int
    cells: list[CellDifference]
    missing: list[str] = field(default_factory=list)

    def to_frame(self) -> pd.DataFrame:
        """Return the table: a row per run, named by its id.

        Numbers are float64, nan if unknown; ``started`` is a datetime64 in local time.  Names, tags
        and notes come first; a metric of the same name has the table's column.
        """
        import pandas as pd

        rows: dict[str, list[Any]] = {
            "name": [run.labels.name for run in self.runs],
            "tags": [", ".join(run.labels.tags) for run in self.runs],
            "note": [run.labels.note for run in self.runs],
        }
        for column in self.columns:
            rows[column.name] = [_in_frame(cell, column) for cell in column.cells]
        if "started" in rows:
            fromtimestamp = datetime.datetime.fromtimestamp
            rows["started"] = [fromtimestamp(run.created) for run in self.runs]
        return pd.DataFrame(rows, index=pd.Index([run.id for run in self.runs], name="run"))

    def _repr_html_(self) -> str:
        from .rendering import comparison_html

        return comparison_html(self)

    def __repr__(self) -> str:
        """Return the table as text."""
        from .rendering import comparison_text

        return comparison_text(self)


def _in_frame(cell: Cell, column: Column) -> float | str:
    if all(other.value is None for other in column.cells):
        return cell.text
    return math.nan if cell.value is None else cell.value


def comparison_of(runs: Sequence[Run]) -> RunComparison:
    """Return what is shown of ``runs``, which the caller has refreshed."""
    named = list(dict.fromkeys(name for run in runs for name in curve_names(run.view)))
    shown = sorted(named, key=lambda name: name != "loss")[:CURVES]
    limit = min(POINTS, max(MIN_POINTS, ALL_POINTS // max(1, len(shown) * len(runs))))
    titles = _distinct_titles(runs)
    return RunComparison(
        runs=[_compared(run, title) for run, title in zip(runs, titles, strict=True)],
        columns=columns(runs, shown),
        metrics=[_lines(name, runs, limit) for name in shown],
        hidden=len(named) - len(shown),
        cells=cell_differences([run.cell for run in runs]),
    )


def run_title(run: Run) -> str:
    """Return what a list calls ``run``."""
    name = text_format.plain(run.labels.name)
    return name or cell_title(run.cell) or text_format.headline(run.record)


def _distinct_titles(runs: Sequence[Run]) -> list[str]:
    """Return the titles of ``runs``; those of the same cell are called by strategy and time."""
    titles = [run_title(run) for run in runs]
    count = Counter(titles)
    pairs = zip(titles, runs, strict=True)
    return [title if count[title] == 1 else _title_with_time(run) for title, run in pairs]


def _title_with_time(run: Run) -> str:
    name = text_format.plain(run.labels.name) or text_format.plain(run.record.options.strategy)
    return f"{name}, {time.strftime('%H:%M:%S', time.localtime(run.record.created))}"


def _compared(run: Run, title: str) -> ComparedRun:
    state = run.state
    return ComparedRun(
        id=run.id,
        title=title,
        headline=text_format.headline(run.record),
        status=run_status(run, state, stopping(run, state), time.time(), 0),
        created=run.record.created,
        labels=run.labels,
        axes=axes(run),
    )


def _lines(name: str, runs: Sequence[Run], limit: int) -> MetricLines:
    drawn = [i for i, run in enumerate(runs) if len(run.view.curves.get(name, ()))]
    lines = [curve_line(name, runs[i].view.curves[name], limit) for i in drawn]
    return MetricLines(text_format.plain(name), drawn, lines)
