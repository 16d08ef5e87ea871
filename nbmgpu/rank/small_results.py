"""What comes back from ranks other than 0, to be compared with what rank 0 has: little data."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch

SMALL = 100_000
"""Elements up to which a value of a rank other than 0 comes back, for comparison."""


def is_small(value: Any) -> bool:
    """Tell whether ``value`` is a number, a string, or little data made of these."""
    return _elements(value, SMALL, depth=3) <= SMALL


def _elements(value: Any, most: int, depth: int) -> float:
    """Return how many elements ``value`` has: more than ``most`` if that many or no plain data.

    Each item of a container counts there, also if it is empty.
    """
    if value is None or isinstance(value, bool | int | float | complex):
        return 0
    if isinstance(value, str):
        return len(value)
    if isinstance(value, torch.Tensor):
        return value.numel() if type(value) is torch.Tensor else math.inf
    if type(value).__module__ == "numpy":
        return getattr(value, "size", math.inf)
    if not depth or not isinstance(value, list | tuple | dict | set | deque):
        return math.inf
    total = float(len(value))
    for item in value.values() if isinstance(value, dict) else value:
        total += _elements(item, most, depth - 1)
        if total > most:
            break
    return total
