"""Which values ranks other than 0 return, for a comparison with rank 0's: small ones."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch

MAX_ELEMENTS = 100_000
"""Elements that a value may have to be returned."""


def is_small(value: Any) -> bool:
    """Return whether ``value`` is a number, a string, or a small container of these."""
    return _count_elements(value, MAX_ELEMENTS, depth=3) <= MAX_ELEMENTS


def _count_elements(value: Any, limit: int, depth: int) -> float:
    """Return the number of elements of ``value``, infinite if it is not plain data.

    Stops counting above ``limit``.  Each item of a container counts as one, plus its own elements.
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
        total += _count_elements(item, limit, depth - 1)
        if total > limit:
            break
    return total
