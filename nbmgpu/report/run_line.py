"""The entry of a run in a list of runs."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass

from nbmgpu.runs.events import ACTIVE_STATES, RunState
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView
from nbmgpu.system.processes import process_is_alive

from . import text_format
from .curves import RATES, curve_names, downsample
from .epoch_count import epochs_in
from .failure_cause import cause
from .progress import estimate_progress
from .snapshot import run_status
from .text_format import Tone

POINTS = 60
"""Maximum points of an entry's curve."""

TITLE_LENGTH = 60
"""Maximum characters of an entry's title."""


@dataclass(frozen=True)
class RunLine:
    """The entry of a run in a list.

    Attributes:
        state: starting, running, finished, failed, stopped, timeout or lost.
        word: the displayed state: ``stopping`` after a request to stop.
        title: the first line of the cell that says what it does; empty if the cell is gone.
        headline: strategy, world size and devices.
        notebook: path of the notebook, if the kernel knew it.
        created: in seconds since the epoch.
        duration: in seconds, to now or to the end.
        over: whether no process of the run is left.
        kernel_pid, kernel_create_time: the process of the kernel that started it.
        kernel_alive: whether that kernel still runs.
        progress: of the run, or of its epoch if no more is known, from 0 to 1; -1 when unknown.
        remaining: the remaining time, formatted; empty when unknown.
        metric: the name of the curve, empty where there is none.
        curve: at most 60 points ``[step, value]`` of it.
        last: the curve's newest value, formatted.
        failure: why it failed, in a sentence, or empty.
    """

    id: str
    state: RunState
    word: str
    tone: Tone
    strategy: str
    world_size: int
    devices: list[str]
    title: str
    headline: str
    notebook: str
    created: float
    duration: float
    over: bool
    kernel_pid: int
    kernel_create_time: float
    kernel_alive: bool
    progress: float
    remaining: str
    metric: str
    curve: list[tuple[float, float]]
    last: str
    failure: str


def run_line(run: Run) -> RunLine:
    """Return the list entry of ``run``."""
    state = run.state
    record, view = run.record, run.view
    cell = run.cell
    epochs = epochs_in(cell) if state in ACTIVE_STATES else 0
    status = run_status(run, state, time.time(), epochs)
    metric, curve, last = mini_curve(view)
    estimate = None if status.over else estimate_progress(view, epochs)
    return RunLine(
        id=run.id,
        state=state,
        word=status.word,
        tone=status.tone,
        strategy=text_format.plain(record.strategy),
        world_size=record.world_size,
        devices=[text_format.plain(device) for device in record.devices],
        title=cell_title(cell),
        headline=text_format.headline(record),
        notebook=text_format.plain(record.notebook),
        created=record.created,
        duration=round(run.duration, 1),
        over=status.over,
        kernel_pid=record.kernel_pid,
        kernel_create_time=record.kernel_create_time,
        kernel_alive=process_is_alive(record.kernel_pid, record.kernel_create_time),
        progress=estimate.fraction if estimate else -1,
        remaining=status.remaining,
        metric=metric,
        curve=curve,
        last=last,
        failure=failure_sentence(run, state),
    )


def cell_title(cell: str) -> str:
    """Return the first line of ``cell`` with content: a comment, or code that is not an import."""
    lines = [line.strip() for line in cell.splitlines()]
    # Cells are stored with their magic line commented out.
    lines = [line for line in lines if line.strip("#- ") and not line.lstrip("# ").startswith("%")]
    is_import = re.compile(r"(import|from)\s")
    first = next((line for line in lines if not is_import.match(line)), "".join(lines[:1]))
    title = text_format.plain(first).lstrip("#").strip()
    return title if len(title) <= TITLE_LENGTH else f"{title[: TITLE_LENGTH - 1]}…"


def mini_curve(view: RunView) -> tuple[str, list[tuple[float, float]], str]:
    """Return name, a few points and newest value of the run's main curve."""
    name = next((name for name in curve_names(view) if name not in RATES), "")
    if not name:
        return "", [], ""
    steps, values = view.curves[name].arrays()
    drawn = zip(*(column.tolist() for column in downsample(steps, values, POINTS)), strict=True)
    points = [(float(x), float(f"{y:.5g}")) for x, y in drawn if math.isfinite(y)]
    return text_format.plain(name), points, text_format.number(float(values[-1]))


def failure_sentence(run: Run, state: RunState) -> str:
    """Return why ``run`` failed, in a sentence: ``rank 1, line 3: ValueError: bad``."""
    why = cause(run, state)
    if why is None:
        return ""
    where = ", ".join(filter(None, [why.who, f"line {why.number}" if why.number else ""]))
    what = why.what.partition("\n")[0]
    return f"{where}: {what}" if where else what
