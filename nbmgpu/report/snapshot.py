"""A run at one moment, in parts; only changed parts are sent."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from typing import Any, Literal

from nbmgpu.runs.events import ACTIVE_STATES, RunState
from nbmgpu.runs.folder import STOP_FILE
from nbmgpu.runs.run import Run

from . import text_format
from .curves import Curves, Throughput, curves, throughput
from .epoch_count import epochs_in
from .failure_cause import Cause, cause
from .log_pages import LogReader, LogSize
from .progress import Bar, bars, remaining
from .rank_rows import RankRow, rows
from .text_format import Tone

HEAVY_INTERVAL = 0.25
"""Minimum seconds between updates of curves and logs."""

Stopping = Literal["", "asked", "forced"]
"""Whether the run was asked to stop, and how."""


@dataclass(frozen=True)
class About:
    """The options of the run; ``created`` is in seconds since the epoch."""

    id: str
    headline: str
    strategy: str
    world_size: int
    devices: str
    batch: str
    folder: str
    notebook: str
    created: float


@dataclass(frozen=True)
class RunStatus:
    """The run's state, elapsed and remaining time (empty when unknown)."""

    state: RunState
    word: str
    tone: Tone
    elapsed: str
    remaining: str
    over: bool
    stopping: Stopping


@dataclass(frozen=True)
class Parts:
    """Everything that is shown of a run."""

    about: About
    status: RunStatus
    notices: list[str]
    failure: Cause | None
    progress: list[Bar]
    curves: Curves
    throughput: Throughput
    ranks: list[RankRow]
    logs: list[LogSize]


class Snapshot:
    """Computes what is shown of a run, and what of it has changed; the caller polls the run."""

    def __init__(self, run: Run) -> None:
        """Observe ``run``."""
        self.run = run
        self.logs = LogReader(run)
        self._epochs = epochs_in(run.cell)
        self._last: dict[str, Any] = {}
        self._heavy_after = 0.0

    def whole(self) -> dict[str, Any]:
        """Return all parts as plain data."""
        state = self.run.state
        return {name: _plain(part) for name, part in (self._light(state) | self._heavy()).items()}

    def changed(self) -> dict[str, Any]:
        """Return the parts that have changed since the last call, as plain data.

        Curves and logs are updated less often, for at most a tenth of the time, until the run has
        ended.
        """
        state = self.run.state
        parts = self._light(state)
        begun = time.monotonic()
        if parts["status"].over or begun >= self._heavy_after:
            parts |= self._heavy()
            now = time.monotonic()
            self._heavy_after = now + max(HEAVY_INTERVAL, 10 * (now - begun))
        new = {n: part for n, part in parts.items() if n not in self._last or part != self._last[n]}
        self._last |= new
        return {name: _plain(part) for name, part in new.items()}

    def _light(self, state: RunState) -> dict[str, Any]:
        run, now = self.run, time.time()
        status = run_status(run, state, now, self._epochs)
        return {
            "about": about(run),
            "status": status,
            "notices": text_format.notices(run.view),
            "failure": cause(run, state),
            "progress": bars(run.view, self._epochs),
            "ranks": rows(run, now, bool(status.stopping)),
        }

    def _heavy(self) -> dict[str, Any]:
        view = self.run.view
        return {
            "curves": curves(view),
            "throughput": throughput(self.run),
            "logs": self.logs.sizes(),
        }


def about(run: Run) -> About:
    """Return the options of ``run``."""
    record = run.record
    return About(
        id=run.id,
        headline=text_format.headline(record),
        strategy=text_format.plain(record.strategy),
        world_size=record.world_size,
        devices=text_format.device_names(record.devices),
        batch=text_format.batch_line(record),
        folder=str(run.folder),
        notebook=text_format.plain(record.notebook),
        created=record.created,
    )


def run_status(run: Run, state: RunState, now: float, epochs: int = 0) -> RunStatus:
    """Return the status of a run in ``state`` with a total of ``epochs`` (0 when unknown)."""
    over = state not in ACTIVE_STATES
    stopping = "" if over else stop_asked(run)
    end = run.view.last_time if over else now
    return RunStatus(
        state=state,
        word="stopping" if stopping else text_format.state_word(state),
        tone=text_format.TONES[state],
        elapsed=text_format.clock(max(end - run.record.created, 0.0), tenths=over),
        remaining="" if over or stopping else remaining(run.view, now, epochs),
        over=over,
        stopping=stopping,
    )


def stop_asked(run: Run) -> Stopping:
    """Tell whether the run was asked to stop, and how."""
    try:
        said = (run.folder / STOP_FILE).read_text()
    except FileNotFoundError:
        return ""
    return "forced" if said.strip() == "force" else "asked"


def _plain(part: Any) -> Any:
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.asdict(part)
    return [_plain(item) for item in part] if isinstance(part, list) else part
