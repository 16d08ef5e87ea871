"""What a comparison has found, to be looked at, saved and acted upon."""

from __future__ import annotations

import csv
import dataclasses
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbmgpu.devices.devices import Machine

from .request import Request
from .trial import Trial

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison: that of one device first, the others in the order asked for.

    ``machine`` is where they were measured; ``left_out`` counts runs that were not made, and
    ``why`` says why: the comparison was stopped, or they could tell nothing.  ``load`` is what
    each of the machine's cores had to do before the first run, in processes that would run.
    """

    request: Request
    rows: tuple[Trial, ...]
    machine: Machine
    left_out: int = 0
    why: str = ""
    load: float = 0.0

    @property
    def alone(self) -> Trial | None:
        """The row of one device, if it has been measured."""
        return next((row for row in self.rows if row.alone), None)

    @property
    def on_gpu(self) -> bool:
        """Whether ranks had GPUs."""
        ran = [entry.options for entry in self.request.entries if entry.options is not None]
        return self.machine.cuda and not any(options.cpu for options in ran)

    @property
    def best(self) -> Trial | None:
        """The fastest of several ranks that ran to the end with one device's loss, if any did."""
        sound = [row for row in self.rows if row.sound and row.ranks > 1]
        counted = all(row.samples_per_second for row in sound)
        return max(sound, key=lambda row: row.rate(counted), default=None)

    @property
    def line(self) -> str:
        """The ``%%mgpu`` line of the best; empty without one."""
        return self.best.line if self.best else ""

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each run and a column for each field of ``Trial``: seconds, bytes."""
        import pandas as pd

        return pd.DataFrame([dataclasses.asdict(row) for row in self.rows])

    def to_csv(self) -> str:
        """Return the same as CSV, with a line of names."""
        text = io.StringIO()
        names = [field.name for field in dataclasses.fields(Trial)]
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(dataclasses.asdict(row) for row in self.rows)
        return text.getvalue()

    def to_markdown(self) -> str:
        """Return the table and what is said below it, for a page or an issue."""
        from .rendering import as_markdown

        return as_markdown(self)

    def _repr_html_(self) -> str:
        from .rendering import as_html

        return as_html(self)

    def __repr__(self) -> str:
        """Return the table as text."""
        from .rendering import as_text

        return as_text(self)
