"""A metric over the steps of a run, averaged over ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from .events import Metrics

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Curve:
    """One metric over steps, averaged over the ranks that reported the step.

    The average is weighted by the samples behind each value, so that a loss is that of one device,
    without a collective.
    """

    sums: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)
    _arrays: tuple[np.ndarray, np.ndarray] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def add(self, points: Metrics) -> None:
        """Add points of one rank."""
        self._arrays = None
        for step, value, weight in zip(points.steps, points.values, points.weights, strict=True):
            if weight:  # an empty shard has no weight, and its value may be nan
                self.sums[step] = self.sums.get(step, 0.0) + weight * value
                self.weights[step] = self.weights.get(step, 0.0) + weight

    def until(self, step: int) -> Curve:
        """Return the points up to and including ``step``."""
        sums = {at: value for at, value in self.sums.items() if at <= step}
        return Curve(sums, {at: self.weights[at] for at in sums})

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.sums)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps (int64) and values (float64) in step order; they cannot be written to.

        They are computed once until points are added: several views read the same curve.
        """
        if self._arrays is None:
            self._arrays = self._sorted_arrays()
        return self._arrays

    def _sorted_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        # Both dictionaries have the same order of keys, nearly always that of steps.
        count = len(self.sums)
        steps = np.fromiter(self.sums, np.int64, count)
        with np.errstate(invalid="ignore", over="ignore"):
            values = np.fromiter(self.sums.values(), np.float64, count)
            values /= np.fromiter(self.weights.values(), np.float64, count)
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
        for array in (steps, values):
            array.flags.writeable = False
        return steps, values

    def points(self) -> list[tuple[int, float]]:
        """Return ``(step, value)`` in step order."""
        steps, values = self.arrays()
        return list(zip(steps.tolist(), values.tolist(), strict=True))

    @property
    def last(self) -> float | None:
        """Return the newest value."""
        if not self.sums:
            return None
        step = max(self.sums)
        return self.sums[step] / self.weights[step]

    def series(self) -> pd.Series[float]:
        """Return the curve as a float64 series indexed by step."""
        import pandas as pd

        steps, values = self.arrays()
        return pd.Series(values.copy(), index=steps.copy(), dtype="float64")
