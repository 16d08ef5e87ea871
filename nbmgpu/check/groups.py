"""All checks, in the order in which they run."""

from __future__ import annotations

from . import failures, features, frameworks, machine, numbers, speed
from .check import Check


def all_checks() -> list[Check]:
    """Return every check; what the others depend on comes first."""
    groups = (machine, failures, numbers, frameworks, features, speed)
    return [check for group in groups for check in group.checks()]
