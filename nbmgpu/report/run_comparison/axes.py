"""Positions of a run's steps on other axes: time, epochs and samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nbmgpu.report.curves import encode_points
from nbmgpu.runs.clock import Positions
from nbmgpu.runs.run import Run

POINTS = 250
"""Maximum points that describe an axis; between two, positions are interpolated."""


@dataclass(frozen=True)
class Axes:
    """Positions of steps, each as base64 of little-endian float32 pairs of step and position.

    An axis is empty if it is not known.

    Attributes:
        seconds: since the first event of the run.
        epochs: passes over the training loader.
        samples: on which the cell has trained, of all ranks together.
    """

    seconds: str
    epochs: str
    samples: str


def axes(run: Run) -> Axes:
    """Return the axes of ``run``."""
    if run.record.options.values.get("resume"):
        return Axes("", "", "")  # its first steps are those of another run
    clock, begun = run.view.clock, run.view.first_time or 0.0
    return Axes(
        seconds=_encoded(_from_zero([(step, time - begun) for step, time in clock.times])),
        epochs=_encoded(_from_zero(clock.epochs)),
        samples=_encoded(_from_zero(clock.samples)),
    )


def _from_zero(positions: Positions) -> Positions:
    return [(0, 0.0), *positions] if positions else []


def _encoded(positions: Positions) -> str:
    if len(positions) < 2:
        return ""
    kept = np.unique(np.linspace(0, len(positions) - 1, POINTS).round().astype(int))
    return encode_points(*np.array(positions)[kept].T)
