"""The metrics of a run as CSV, in pages, with all points."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from nbmgpu.runs.run import Run

from .curves import curve_names
from .text_format import plain

STEP, EPOCH = "step", "epoch"
"""The columns before those of the metrics; a metric of this name becomes ``epoch (metric)``."""

PAGE_VALUES = 10_000
"""Values of a page: about 200 KB. Jupyter drops what a kernel sends beyond 1 MB per second."""


@dataclass(frozen=True)
class CsvRequest:
    """A request for the rows after one step.

    Attributes:
        after: the last step of the page before; -1 for the first page, which begins with the title.
        columns: those of the first page; empty for the first page.
    """

    after: int = -1
    columns: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CsvPage:
    """Some rows.

    Attributes:
        text: complete lines.
        columns: the names of the columns, for the next request: other metrics may appear meanwhile.
        last: the step of the last row; -1 without rows.
        left: the number of steps that follow, of the metric that has most.
    """

    text: str
    columns: list[str]
    last: int
    left: int


def csv_page(run: Run, request: CsvRequest) -> CsvPage:
    """Return the rows that follow ``request.after``: a row per step, with all digits.

    A metric without a point at a step is empty there; one that is not finite is ``nan`` or ``inf``.
    The epoch is that of the training loader, with its fraction, as far as it is known.
    """
    view = run.view
    names = [*view.curves] if request.columns else curve_names(view)
    metrics = {_title(name): view.curves[name].arrays() for name in names}
    columns = request.columns or [STEP, *([EPOCH] if _has_epochs(run) else []), *metrics]
    shown = [metrics[name] for name in columns if name in metrics]
    count = max(1, PAGE_VALUES // len(columns))
    begins = [int(np.searchsorted(steps, request.after, "right")) for steps, _ in shown]
    # The first rows of the page consist of the first points of each metric.
    parts = [steps[at : at + count] for (steps, _), at in zip(shown, begins, strict=True)]
    page = np.unique(np.concatenate(parts))[:count] if parts else np.zeros(0, np.int64)
    last = int(page[-1]) if len(page) else -1
    fields = [page.tolist()]
    if EPOCH in columns:
        fields.append(_epochs(run, page))
    for (steps, values), at in zip(shown, begins, strict=True):
        end = int(np.searchsorted(steps, last, "right"))
        fields.append(_aligned(page, steps[at:end], values[at:end]))
    left = max(
        (len(steps) - np.searchsorted(steps, last, "right") for steps, _ in shown), default=0
    )
    title = [] if request.columns else [columns]
    rows = [*title, *zip(*fields, strict=True)]
    return CsvPage(_text(rows), columns, last, int(left) if len(page) else 0)


def csv_pages(run: Run) -> Iterator[str]:
    """Yield the whole file in parts."""
    page = csv_page(run, CsvRequest())
    yield page.text
    while page.left:
        page = csv_page(run, CsvRequest(page.last, page.columns))
        yield page.text


def _title(name: str) -> str:
    return f"{name} (metric)" if name in (STEP, EPOCH) else plain(name)


def _has_epochs(run: Run) -> bool:
    # The first steps of a resumed run are those of another one.
    return bool(run.view.clock.epochs) and not run.record.options.values.get("resume")


def _epochs(run: Run, page: np.ndarray) -> list[str]:
    steps, epochs = np.array([(0, 0.0), *run.view.clock.epochs]).T
    found = np.interp(page, steps, epochs, right=np.nan)
    return ["" if np.isnan(value) else f"{value:.6g}" for value in found.tolist()]


def _aligned(page: np.ndarray, steps: np.ndarray, values: np.ndarray) -> list[str]:
    """Return the values at the steps of a page, as texts; empty where there is none."""
    texts = [""] * len(page)
    for at, value in zip(np.searchsorted(page, steps).tolist(), values.tolist(), strict=True):
        texts[at] = repr(value)
    return texts


def _text(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
