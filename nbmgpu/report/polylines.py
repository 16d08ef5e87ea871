"""The polylines of a curve in SVG."""

from __future__ import annotations

import numpy as np

Range = tuple[float, float]
"""The lowest and the highest value of an axis."""


def finite_range(values: np.ndarray) -> Range | None:
    """Return the range of the finite ones of ``values``, or None without any."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else None


def polylines(
    steps: np.ndarray,
    values: np.ndarray,
    width: int,
    height: int,
    step_range: Range | None = None,
    value_range: Range | None = None,
) -> list[str]:
    """Return the points of the polylines between non-finite values, in ``width`` by ``height``.

    The ranges of the axes are by default those of ``steps`` and of the finite ``values``.
    """
    finite = np.isfinite(values)
    if (value_range := value_range or finite_range(values)) is None or not finite.any():
        return []
    low, high = value_range
    first, last = step_range or (float(steps[0]), float(steps[-1]))
    # Halves, so that the span of the largest floats does not overflow.
    span = high / 2 - low / 2
    with np.errstate(invalid="ignore", over="ignore"):
        down = (high / 2 - values / 2) / span if span else np.full(len(values), 0.5)
    x = 2 + (width - 4) * (steps - first) / max(1, last - first)
    y = 2 + (height - 4) * down
    places = [f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True)]
    lines: list[list[str]] = [[]]
    for place, sound in zip(places, finite, strict=True):
        if sound:
            lines[-1].append(place)
        elif lines[-1]:
            lines.append([])
    # A single point becomes a dot: a line of zero length with round caps.
    return [" ".join(line if len(line) > 1 else line * 2) for line in lines if line]
