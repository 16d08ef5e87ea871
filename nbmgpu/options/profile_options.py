"""The option of profiling: which optimizer steps are measured."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .values import InvalidValueError, Problem

MAX_STEPS = 50
"""Maximum number of profiled steps: each adds its operations to the trace of each rank."""

DEFAULT_STEPS = "5-10"
"""The profiled steps where ``--profile`` names none: the first steps are slower than later ones."""

FORMS = f"The first and the last step, such as {DEFAULT_STEPS}: from 1, at most {MAX_STEPS} steps"


@dataclass(frozen=True)
class ProfiledSteps:
    """The optimizer steps that are profiled.

    Attributes:
        first: number of the first one, from 1.
        last: number of the last one.
    """

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> ProfiledSteps:
        """Return the steps that a text like ``5-10`` says.

        Raises:
            ValueError: it says none, or too many.
        """
        found = re.fullmatch(r"(\d+)\s*-\s*(\d+)", text.strip())
        if found is None:
            raise ValueError(text)
        steps = cls(int(found[1]), int(found[2]))
        if not 1 <= steps.first <= steps.last < steps.first + MAX_STEPS:
            raise ValueError(text)
        return steps

    def __str__(self) -> str:
        """Return the steps as they are typed: ``5-10``."""
        return f"{self.first}-{self.last}"


@dataclass(frozen=True)
class ProfileOptions:
    """The option of profiling.

    Attributes:
        profile: the optimizer steps that are profiled, see ``ProfiledSteps``; None for none.
    """

    profile: str | None = None


def validate_profile(value: object) -> str | None:
    """Return the steps to profile as text, or None."""
    if value is None or value is False:
        return None
    text = DEFAULT_STEPS if value is True else str(value)
    try:
        return str(ProfiledSteps.parse(text))
    except ValueError:
        problem = Problem(f"{value!r} does not name the steps to profile", FORMS)
        raise InvalidValueError(problem, _near(text)) from None


def _near(text: str) -> str:
    """Return valid steps that may have been meant."""
    numbers = [max(int(digits), 1) for digits in re.findall(r"\d{1,6}", text)[:2]]
    if not numbers:
        return DEFAULT_STEPS
    first, last = min(numbers), max(numbers)
    return str(ProfiledSteps(first, min(last, first + MAX_STEPS - 1)))
