"""Compares the values that ranks hold under the same names."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

TOLERANCE = 1e-5
"""Relative difference that still counts as rounding."""

OF_CLOCK = re.compile(r"(^|_)(time|seconds|runtime|elapsed|per_second)$")
"""Matches keys such as ``eval_runtime``, under which each rank has what its clock says."""


def differing_names(own: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of ``own`` for which some other rank has another value.

    Names that a rank does not have, or whose values cannot be compared, are skipped.
    """
    found: list[str] = []
    for other in others:
        both = [name for name in own if name in other and name not in found]
        found += [name for name in both if _differ_certainly(own[name], other[name])]
    return found


def _differ_certainly(a: Any, b: Any) -> bool:
    try:
        return _differ(a, b)
    except Exception:  # cannot be compared: whatever its library raises
        return False


def _differ(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, np.generic):
        a, b = a.item(), b.item()
    if isinstance(a, set):  # copies of objects without __eq__ are never equal
        plain = all(isinstance(item, str | int | None) for item in a | b)
        return plain and a != b
    if isinstance(a, bool | str):
        return bool(a != b)
    if isinstance(a, complex):
        return _differ([a.real, a.imag], [b.real, b.imag])
    if isinstance(a, int | float):
        both_nan = math.isnan(a) and math.isnan(b)
        return not (both_nan or math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-8))
    if isinstance(a, dict):
        return a.keys() != b.keys() or any(
            _differ(a[key], b[key]) for key in a if not OF_CLOCK.search(str(key))
        )
    if isinstance(a, list | tuple | deque):
        return len(a) != len(b) or any(_differ(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "detach"):
        a, b = (t.detach().to_dense().cpu() for t in (a, b))
        if a.dtype != b.dtype or a.shape != b.shape:
            return True
        if not (a.dtype.is_floating_point or a.dtype.is_complex):
            return not bool((a == b).all())
        a, b = (t.numpy() if t.dtype.is_complex else t.double().numpy() for t in (a, b))
    if isinstance(a, np.ndarray) and a.dtype.kind in "biufc":
        return a.shape != b.shape or not np.allclose(
            a, b, rtol=TOLERANCE, atol=1e-8, equal_nan=True
        )
    return False
