"""The options of checkpoints: when they are written, and where a run goes on."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from nbmgpu.runs.checkpoint import NEWEST

from .values import SECONDS, InvalidValueError, Problem, count_of, integer

FORMS = "every 10m (or 30s, 2h), every 500steps, or every epoch"


@dataclass(frozen=True)
class CheckpointInterval:
    """The interval between two checkpoints.

    Attributes:
        unit: what it is counted in.
        number: how many of them; 1 for epochs.
    """

    unit: Literal["seconds", "steps", "epoch"]
    number: int

    @classmethod
    def parse(cls, text: str) -> CheckpointInterval:
        """Return the interval that a text like ``10m`` says.

        Raises:
            ValueError: it says none.
        """
        found = re.fullmatch(r"(\d*)\s*(s|m|h|steps?|epoch)", text.strip().lower())
        if found is None:
            raise ValueError(text)
        number, unit = found.groups()
        if unit == "epoch":
            if number not in ("", "1"):
                raise ValueError(text)
            return cls("epoch", 1)
        if not number or int(number) < 1:
            raise ValueError(text)
        if unit.startswith("step"):
            return cls("steps", int(number))
        return cls("seconds", int(number) * SECONDS[unit])


@dataclass(frozen=True)
class CheckpointOptions:
    """The options of checkpoints.

    Attributes:
        checkpoint_every: interval between checkpoints, see ``CheckpointInterval``; None for none.
        keep: number of checkpoints that are kept.
        resume: the run to go on with, or the folder of a checkpoint; None to start anew.
        max_restarts: how often the kernel starts a run again by itself, from its newest checkpoint,
            after a rank was ended by a signal, or a node was lost.
    """

    checkpoint_every: str | None = None
    keep: int = 3
    resume: str | None = None
    max_restarts: int = 0


def validate_checkpoint_every(value: object) -> str | None:
    """Return an interval between checkpoints as text, or None."""
    if value is None:
        return None
    try:
        CheckpointInterval.parse(str(value))
    except ValueError:
        problem = Problem(f"{value!r} is not an interval between checkpoints", f"Write one {FORMS}")
        near = f"{value}steps" if re.fullmatch(r"\d+", str(value)) else "10m"
        raise InvalidValueError(problem, near) from None
    return str(value).strip().lower()


def validate_resume(value: object) -> str | None:
    """Return which run to resume: ``newest``, the beginning of an id, or a checkpoint's path."""
    if value is None or value is False:
        return None
    if value is True:
        return NEWEST
    if isinstance(value, str | os.PathLike) and str(value):
        return str(value)
    problem = Problem(f"{value!r} is not a run", "A run's id, or the path of a checkpoint")
    raise InvalidValueError(problem, NEWEST)


validate_keep = count_of(
    "checkpoints", "The number of checkpoints that are kept", 3, optional=False
)


def validate_max_restarts(value: object) -> int:
    """Return how often a run may start again."""
    try:
        if (number := integer(value)) >= 0:
            return number
    except ValueError:
        pass
    problem = Problem(f"{value!r} is not a number of restarts", "An integer from 0")
    raise InvalidValueError(problem, 1)
