"""The metrics of a run as a table: the last, lowest, highest and mean value of each."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from operator import itemgetter

import numpy as np

from nbmgpu.runs.clock import Positions
from nbmgpu.runs.curve import Curve
from nbmgpu.runs.view import RunView

from .best_value import Best, best_value
from .curves import RATES, curve_names
from .text_format import number, plain

ROWS = 100
"""Maximum metrics that have a row; ``Run.metrics`` has all."""

RECENT = 10
"""Points whose mean is shown until an epoch is complete."""


@dataclass(frozen=True)
class Extreme:
    """The lowest or highest value of a metric, formatted, and the first step that has it."""

    value: str
    step: int


@dataclass(frozen=True)
class MetricRow:
    """One metric.

    Attributes:
        name: of the metric.
        last: its newest value, formatted.
        finite: whether that value is finite.
        lowest, highest: of its finite values; None without any.
        mean: the mean of the finite values of an epoch or of some points, formatted; empty
            without any.
        points: the number of steps with a value.
        best: which of ``lowest`` and ``highest`` is the best value, if the name says so.
    """

    name: str
    last: str
    finite: bool
    lowest: Extreme | None
    highest: Extreme | None
    mean: str
    points: int
    best: Best


@dataclass(frozen=True)
class MetricTable:
    """The metrics, the loss first and rates last.

    Attributes:
        rows: one for each metric.
        hidden: the number of metrics left out.
        epoch: the last complete epoch, from 1, of which ``mean`` is; 0 where no epoch is known, and
            ``mean`` is that of the last points.
        recent: the number of these points.
    """

    rows: list[MetricRow]
    hidden: int
    epoch: int
    recent: int = RECENT


@dataclass(frozen=True)
class Epoch:
    """A pass over the training loader: its number, from 1, and its steps, without ``before``."""

    number: int
    before: int
    last: int


def metric_table(view: RunView) -> MetricTable:
    """Return the table of all metrics, also of the rates."""
    names = sorted(curve_names(view), key=lambda name: name in RATES)
    epoch = last_epoch(view.clock.epochs)
    rows = [metric_row(name, view.curves[name], epoch) for name in names[:ROWS]]
    return MetricTable(rows, max(0, len(names) - ROWS), epoch.number if epoch else 0)


def metric_row(name: str, curve: Curve, epoch: Epoch | None) -> MetricRow:
    """Return one metric, which has points, and its mean in ``epoch`` or of its last points."""
    steps, values = curve.arrays()
    finite = np.isfinite(values)
    begin, end = len(steps) - RECENT, len(steps)
    if epoch:
        begin, end = np.searchsorted(steps, [epoch.before, epoch.last], "right").tolist()
    recent = slice(max(0, begin), end)
    some = values[recent][finite[recent]]
    last = float(values[-1])
    return MetricRow(
        name=plain(name),
        last=number(last),
        finite=math.isfinite(last),
        lowest=_extreme(steps, values, int(np.where(finite, values, np.inf).argmin()), finite),
        highest=_extreme(steps, values, int(np.where(finite, values, -np.inf).argmax()), finite),
        mean=number(float(some.mean())) if len(some) else "",
        points=len(steps),
        best=best_value(name),
    )


def _extreme(steps: np.ndarray, values: np.ndarray, at: int, finite: np.ndarray) -> Extreme | None:
    return Extreme(number(float(values[at])), int(steps[at])) if finite[at] else None


def last_epoch(positions: Positions) -> Epoch | None:
    """Return the last complete epoch; None before the end of the first, or if none is known."""
    complete = int(positions[-1][1]) if positions else 0
    if complete < 1:
        return None
    return Epoch(complete, _step_at(positions, complete - 1), _step_at(positions, complete))


def _step_at(positions: Positions, epoch: float) -> int:
    """Return the step at which ``epoch`` epochs are over, between known positions."""
    at = bisect_left(positions, epoch, key=itemgetter(1))
    (step, before), (next_step, after) = positions[at - 1] if at else (0, 0.0), positions[at]
    return round(step + (next_step - step) * (epoch - before) / (after - before))
