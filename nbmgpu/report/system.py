"""What the ranks have used of the machine over time, as lines of charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nbmgpu.formatting import format_bytes
from nbmgpu.runs.run import Run
from nbmgpu.runs.usage import Usage

from .curves import CurveLine, downsample, encode_points

Unit = Literal["percent", "bytes", "bytes/s"]
Quantity = Literal["cpu", "memory", "gpu", "gpu_memory", "sent"]

QUANTITIES: dict[Quantity, Unit] = {
    "cpu": "percent",
    "memory": "bytes",
    "gpu": "percent",
    "gpu_memory": "bytes",
    "sent": "bytes/s",
}

MAX_LINES = 4
"""Ranks that have a line each; of more ranks, the lowest, the mean and the highest are drawn."""

POINTS = 128
"""Points of a line."""


@dataclass(frozen=True)
class SystemChart:
    """One quantity over the seconds since the run began.

    Attributes:
        quantity: what is drawn.
        unit: of its values.
        lines: of each rank, or of all ranks taken together.
    """

    quantity: Quantity
    unit: Unit
    lines: list[CurveLine]


def system_charts(run: Run) -> list[SystemChart]:
    """Return a chart for each quantity that is known and not always 0."""
    ranks = [(number, rank.usage.samples) for number, rank in enumerate(run.view.ranks)]
    ranks = [(number, samples) for number, samples in ranks if samples]
    if not ranks:
        return []
    start = run.record.created
    times = [np.array([usage.time for usage in samples]) - start for _, samples in ranks]
    charts = []
    for quantity, unit in QUANTITIES.items():
        values = [_column(samples, quantity) for _, samples in ranks]
        if not any((column > 0).any() for column in values):
            continue
        if len(ranks) <= MAX_LINES:
            named = zip((f"rank {number}" for number, _ in ranks), times, values, strict=True)
            lines = [_line(*each, unit) for each in named]
        else:
            lines = _summary(times, values, unit)
        charts.append(SystemChart(quantity, unit, lines))
    return charts


def _column(samples: Sequence[Usage], quantity: Quantity) -> np.ndarray:
    values = np.array([getattr(usage, quantity) for usage in samples], dtype=float)
    return np.where(values < 0, np.nan, values)


def _summary(times: list[np.ndarray], values: list[np.ndarray], unit: Unit) -> list[CurveLine]:
    """Return the lowest, the mean and the highest of all ranks at common times."""
    last = max(float(each[-1]) for each in times)
    grid = np.linspace(min(float(each[0]) for each in times), last, POINTS)
    at_times = zip(times, values, strict=True)
    table = np.array([np.interp(grid, at, v, left=np.nan, right=np.nan) for at, v in at_times])
    reductions: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "lowest": lambda t: np.nanmin(t, axis=0),
        "mean": lambda t: np.nanmean(t, axis=0),
        "highest": lambda t: np.nanmax(t, axis=0),
    }
    known = ~np.isnan(table).all(axis=0)
    return [
        _line(name, grid[known], reduce(table[:, known]), unit)
        for name, reduce in reductions.items()
    ]


def _line(name: str, times: np.ndarray, values: np.ndarray, unit: Unit) -> CurveLine:
    times, values = downsample(times, values, POINTS)
    last = float(values[-1])
    return CurveLine(
        name, _formatted(last, unit), math.isfinite(last), len(times), encode_points(times, values)
    )


def _formatted(value: float, unit: Unit) -> str:
    if not math.isfinite(value):
        return ""
    if unit == "percent":
        return f"{value:.0f} %"
    return format_bytes(int(value)) + ("/s" if unit == "bytes/s" else "")
