"""The answer: what each strategy would hold and cost, and which one to take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .interval import Span
from .memory_model import Kind
from .speed_model import Speed

Fit = Literal["fits", "tight", "no", "unknown"]


@dataclass(frozen=True)
class Part:
    """What one kind of memory takes on a rank; bytes."""

    kind: Kind
    low: int
    high: int


@dataclass(frozen=True)
class Estimate:
    """One strategy for one model.

    Attributes:
        name: the strategy, with an option where that makes it another.
        summary: what it is, in one line.
        parts: memory of a rank by kind; empty where it is unknown.
        low, high: all of them together.
        fits: ``fits`` with a reserve, ``tight`` if perhaps, ``no``, or ``unknown``.
        why: why it cannot be had, or what the judgement leaves out; mostly empty.
        speed: relative to ``ddp`` on the same ranks.
        costs: what it costs, in words.
        source: where the numbers come from.
        line: the ``%%mgpu`` line that asks for it; empty if it cannot be had.
    """

    name: str
    summary: str
    parts: tuple[Part, ...]
    low: int
    high: int
    fits: Fit
    why: str
    speed: Speed
    costs: str
    source: str
    line: str

    @property
    def total(self) -> Span:
        """All memory of a rank."""
        return Span(self.low, self.high)


@dataclass(frozen=True)
class Advice:
    """Which strategy to take, and all that it was chosen from.

    Attributes:
        model: what was asked about, in one line.
        where: the ranks, in words.
        ranks: how many.
        free: bytes free for each; None where nobody knows.
        rows: one for each strategy.
        recommended: the name of the row to take.
        reason: why, in one sentence.
        line: the ``%%mgpu`` line to put above the cell; empty if nothing fits.
        largest_batch: samples of all ranks together that surely fit; None if unknown or no limit.
        notes: what was assumed, left out, or is missing.
    """

    model: str
    where: str
    ranks: int
    free: int | None
    rows: tuple[Estimate, ...]
    recommended: str
    reason: str
    line: str
    largest_batch: int | None
    notes: tuple[str, ...]

    def row(self, name: str) -> Estimate:
        """Return the row of the strategy ``name``."""
        return next(row for row in self.rows if row.name == name)

    def __repr__(self) -> str:
        """Return a table for terminals."""
        from .rendering import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from .rendering import as_html

        return as_html(self)
