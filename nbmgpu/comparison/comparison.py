"""The result of a comparison: its rows, as a data frame, CSV, Markdown and HTML."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmgpu.devices.probe import Machine

from .request import Request
from .trial import COLUMNS, Trial

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison, starting with one device.

    Attributes:
        request: the requested runs.
        rows: one per run, in that order.
        machine: where they were measured.
        left_out: the number of runs that were not made, and ``why``.
        load: the load average per core before the first run.
    """

    request: Request
    rows: tuple[Trial, ...]
    machine: Machine
    left_out: int = 0
    why: str = ""
    load: float = 0.0

    @property
    def baseline(self) -> Trial | None:
        """The row of one device, if it was measured."""
        return next((row for row in self.rows if row.is_baseline), None)

    @property
    def on_gpu(self) -> bool:
        """Whether the ranks used GPUs."""
        return any(row.on_gpu for row in self.rows)

    @property
    def best(self) -> Trial | None:
        """The fastest finished run on several ranks whose loss agrees with one device, if any."""
        comparable = [row for row in self.rows if row.is_comparable and row.ranks > 1]
        counted = all(row.timing.samples_per_second for row in comparable)
        return max(comparable, key=lambda row: row.timing.rate(counted), default=None)

    @property
    def faster_on_one_device(self) -> bool:
        """Whether one device was faster than the best run on several ranks."""
        baseline, best = self.baseline, self.best
        if baseline is None or best is None or not baseline.is_comparable:
            return False
        return (best.speed_up or 1.0) < 1.0

    @property
    def line(self) -> str:
        """The ``%%mgpu`` line of the best run; empty if one device is faster, or without one."""
        return "" if self.best is None or self.faster_on_one_device else self.best.line

    def to_frame(self) -> pd.DataFrame:
        """Return a row per run and a column per item of ``Trial.as_row``."""
        import pandas as pd

        return pd.DataFrame([row.as_row() for row in self.rows])

    def to_csv(self) -> str:
        """Return the data frame as CSV, with a header."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.as_row() for row in self.rows)
        return text.getvalue()

    def to_markdown(self) -> str:
        """Return the table and its notes as Markdown."""
        from .rendering import as_markdown

        return as_markdown(self)

    def _repr_html_(self) -> str:
        from .rendering import as_html

        return as_html(self)

    def __repr__(self) -> str:
        """Return the table as text."""
        from .rendering import as_text

        return as_text(self)
