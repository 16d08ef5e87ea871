"""The line of the cell that a notice is about, at the beginning of its text."""

from __future__ import annotations

import re

AT_LINE = re.compile(r"Line (\d+) of the cell ")


def place(line: int) -> str:
    """Return how a notice about a line begins; 0 if the line is unknown."""
    return f"Line {line} of the cell" if line else "The step"


def line_of(text: str) -> int:
    """Return the line that a notice is about; 0 if it is about none."""
    found = AT_LINE.match(text)
    return int(found[1]) if found else 0
