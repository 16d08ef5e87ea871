"""How the source of a cell differs from that of another run."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

CONTEXT = 3
"""Equal lines that are shown around a difference."""

LineKind = Literal["same", "removed", "added", "gap"]


@dataclass(frozen=True)
class DiffLine:
    """A line of a difference; a ``gap`` stands for equal lines that are left out."""

    kind: LineKind
    text: str


@dataclass(frozen=True)
class CellDifference:
    """How a cell differs from that of the first run; without ``lines``, it does not."""

    lines: list[DiffLine]


def cell_differences(cells: Sequence[str]) -> list[CellDifference]:
    """Return the difference of each cell from the first one."""
    first = cells[0].splitlines() if cells else []
    return [CellDifference(list(_lines(first, cell.splitlines()))) for cell in cells]


def _lines(old: list[str], new: list[str]) -> Iterator[DiffLine]:
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for number, group in enumerate(matcher.get_grouped_opcodes(CONTEXT)):
        if number:
            yield DiffLine("gap", "")
        for tag, i, j, k, m in group:
            if tag == "equal":
                yield from (DiffLine("same", line) for line in old[i:j])
                continue
            yield from (DiffLine("removed", line) for line in old[i:j])
            yield from (DiffLine("added", line) for line in new[k:m])
