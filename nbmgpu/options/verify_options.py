"""``--verify``: for how long a process beside the ranks compares them with one device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .values import InvalidValueError, Problem

DEFAULT_SECONDS = 3.0
"""Seconds after the first step: a few steps of a large model, all of a small one."""


@dataclass(frozen=True)
class VerifyOptions:
    """The option of the reference.

    Attributes:
        verify: seconds for which a process runs the cell on one device, and compares its gradients
            with those of the ranks; 0 for no such process.
    """

    verify: float = DEFAULT_SECONDS


def validate_verify(value: object) -> float:
    """Return seconds, 0 or more; None for the default."""
    if value is None or value is True:
        return DEFAULT_SECONDS
    try:
        seconds = 0.0 if value is False else float(str(value).removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if 0 <= seconds < math.inf:
        return seconds
    meaning = "A number of seconds for which one device runs the cell beside the ranks; 0: not"
    problem = Problem(f"{value!r} is not a time for which to verify", meaning)
    raise InvalidValueError(problem, DEFAULT_SECONDS)
