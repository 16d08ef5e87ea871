"""The result of ``advise``: an estimate for each strategy, and a recommendation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .interval import Interval
from .node_traffic import NodeTraffic
from .rendering import as_html, as_text
from .speed_model import Speed
from .training_setup import Kind

Fit = Literal["fits", "tight", "no", "unknown"]


@dataclass(frozen=True)
class Part:
    """Memory of one kind on one rank, in bytes."""

    kind: Kind
    low: int
    high: int


@dataclass(frozen=True)
class Estimate:
    """The estimate for one strategy.

    Attributes:
        name: name of the strategy, with an option where the option makes a row of its own.
        summary: one line that describes the strategy.
        parts: memory of one rank by kind; empty if unknown.
        low, high: bounds of the total memory of one rank, in bytes.
        fits: ``fits`` with a reserve, ``tight`` if it may fit, ``no``, or ``unknown``.
        problem: why the strategy is unavailable or does not fit; usually empty.
        speed: speed relative to ``ddp`` on the same ranks.
        costs: the drawbacks of the strategy, as text.
        source: the source of the memory estimate.
        line: the ``%%mgpu`` line that selects the strategy; empty if it is unavailable.
        traffic: what a node sends to others; None on one machine, or if unknown.
    """

    name: str
    summary: str
    parts: tuple[Part, ...]
    low: int
    high: int
    fits: Fit
    problem: str
    speed: Speed
    costs: str
    source: str
    line: str
    traffic: NodeTraffic | None = None

    @property
    def total(self) -> Interval:
        """Total memory of one rank."""
        return Interval(self.low, self.high)


@dataclass(frozen=True)
class Advice:
    """The recommended strategy, and the estimates that the recommendation is based on.

    Attributes:
        model: one line that describes the model.
        devices: description of the devices, such as ``2 CPU ranks``.
        ranks: number of ranks.
        free: free memory for each rank in bytes; None if unknown.
        rows: one estimate for each strategy.
        recommended: name of the recommended row; empty if nothing fits.
        reason: the reason for the recommendation, in one sentence.
        line: the ``%%mgpu`` line to put above the cell; empty if nothing fits.
        largest_batch: largest global batch, in samples, that should fit; None if unknown or
            not limited by memory.
        notes: assumptions, and what the estimates leave out.
    """

    model: str
    devices: str
    ranks: int
    free: int | None
    rows: tuple[Estimate, ...]
    recommended: str
    reason: str
    line: str
    largest_batch: int | None
    notes: tuple[str, ...]

    def row(self, name: str) -> Estimate:
        """Return the estimate for the strategy ``name``."""
        return next(row for row in self.rows if row.name == name)

    def __repr__(self) -> str:
        """Return a table for terminals."""
        return as_text(self)

    def _repr_html_(self) -> str:
        return as_html(self)
