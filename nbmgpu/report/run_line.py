"""The entry of a run in a list of runs."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbmgpu.runs.events import ACTIVE_STATES, RunState
from nbmgpu.runs.labels import RunLabels, read_labels
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView
from nbmgpu.system.processes import process_is_alive

from . import text_format
from .curves import RATES, curve_names, downsample
from .epoch_count import epochs_in
from .failure_cause import cause
from .progress import estimate_progress
from .stopping import stopping
from .views.status import RunStatus, run_status

POINTS = 60
"""Maximum points of an entry's curve."""

TITLE_LENGTH = 60
"""Maximum characters of an entry's title."""


@dataclass(frozen=True)
class KernelStatus:
    """The process of the kernel that launched a run, and whether it still runs."""

    pid: int
    create_time: float
    alive: bool


@dataclass(frozen=True)
class Sparkline:
    """A small chart without axes of the run's main curve.

    Attributes:
        name: the name of the curve; empty if there is none.
        points: at most 60 points ``[step, value]``.
        last: the newest value, formatted.
    """

    name: str
    points: list[tuple[float, float]]
    last: str


@dataclass(frozen=True)
class RunLine:
    """The entry of a run in a list.

    Attributes:
        status: its state, and how it is displayed.
        title: the first line of the cell that says what it does; empty if the cell is gone.
        headline: strategy, world size and devices.
        notebook: path of the notebook, if the kernel knew it.
        created: in seconds since the epoch.
        duration: in seconds, to now or to the end.
        kernel: the kernel that launched it.
        progress: of the run, or of its epoch if no more is known, from 0 to 1; -1 when unknown.
        curve: the main curve.
        failure: why it failed, in a sentence, or empty.
        labels: its name, tags and note.
    """

    id: str
    status: RunStatus
    strategy: str
    world_size: int
    title: str
    headline: str
    notebook: str
    created: float
    duration: float
    kernel: KernelStatus
    progress: float
    curve: Sparkline
    failure: str
    labels: RunLabels

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> RunLine:
        """Return the entry that ``dataclasses.asdict`` has turned into ``fields``.

        Raises:
            KeyError, TypeError: it is of another version.
        """
        curve = fields["curve"]
        points = [(step, value) for step, value in curve["points"]]
        nested = {
            "status": RunStatus(**fields["status"]),
            "kernel": KernelStatus(**fields["kernel"]),
            "curve": Sparkline(**curve | {"points": points}),
            "labels": RunLabels(**fields["labels"]),
        }
        return cls(**fields | nested)


def run_line(run: Run) -> RunLine:
    """Return the list entry of ``run``."""
    state = run.state
    record, view = run.record, run.view
    cell = run.cell
    epochs = epochs_in(cell) if state in ACTIVE_STATES else 0
    status = run_status(run, state, stopping(run, state), time.time(), epochs)
    estimate = None if status.over else estimate_progress(view, epochs)
    kernel = record.kernel
    return RunLine(
        id=run.id,
        status=status,
        strategy=text_format.plain(record.options.strategy),
        world_size=record.world_size,
        title=cell_title(cell),
        headline=text_format.headline(record),
        notebook=text_format.plain(kernel.notebook),
        created=record.created,
        duration=round(run.duration, 1),
        kernel=KernelStatus(
            kernel.pid, kernel.create_time, process_is_alive(kernel.pid, kernel.create_time)
        ),
        progress=estimate.fraction if estimate else -1,
        curve=sparkline(view),
        failure=failure_sentence(run, state),
        labels=run.labels,
    )


def with_current_labels(line: RunLine, folder: Path) -> RunLine:
    """Return ``line``, which may be cached, with the labels that its run has now."""
    labels = read_labels(folder)
    if labels is None or labels == line.labels:
        return line
    return dataclasses.replace(line, labels=labels)


def cell_title(cell: str) -> str:
    """Return the first line of ``cell`` with content: a comment, or code that is not an import."""
    lines = [line.strip() for line in cell.splitlines()]
    # Cells are stored with their magic line commented out.
    lines = [line for line in lines if line.strip("#- ") and not line.lstrip("# ").startswith("%")]
    is_import = re.compile(r"(import|from)\s")
    first = next((line for line in lines if not is_import.match(line)), "".join(lines[:1]))
    title = text_format.plain(first).lstrip("#").strip()
    return title if len(title) <= TITLE_LENGTH else f"{title[: TITLE_LENGTH - 1]}…"


def sparkline(view: RunView) -> Sparkline:
    """Return a few points of the run's main curve, and its newest value."""
    name = next((name for name in curve_names(view) if name not in RATES), "")
    if not name:
        return Sparkline("", [], "")
    steps, values = view.curves[name].arrays()
    drawn = zip(*(column.tolist() for column in downsample(steps, values, POINTS)), strict=True)
    points = [(float(x), float(f"{y:.5g}")) for x, y in drawn if math.isfinite(y)]
    return Sparkline(text_format.plain(name), points, text_format.number(float(values[-1])))


def failure_sentence(run: Run, state: RunState) -> str:
    """Return why ``run`` failed, in a sentence: ``rank 1, line 3: ValueError: bad``."""
    found = cause(run, state)
    if found is None:
        return ""
    line = f"line {found.number}" if found.number else ""
    location = ", ".join(filter(None, [found.origin, line]))
    error = found.error.partition("\n")[0]
    return f"{location}: {error}" if location else error
