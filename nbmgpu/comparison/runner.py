"""The runs of a comparison, one after another, from the same state."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

from nbmgpu.devices.probe import Machine, probe
from nbmgpu.engines.registry import get_engine
from nbmgpu.errors import LaunchError, OptionError, StrategyError
from nbmgpu.formatting import format_count
from nbmgpu.kernel.execution import Execution
from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.report.digest import write_digest
from nbmgpu.runs.events import Event, Status
from nbmgpu.runs.view import QUEUED
from nbmgpu.strategies import profile_of

from .comparison import Comparison
from .measurements import LaunchCost
from .request import Entry, Request
from .trial import ONE_DEVICE_NAME, Trial, measured, refused

SAMPLING_INTERVAL, IDLE_SAMPLES = 0.2, 3
"""Seconds between samples of the engine's CPU time, and how many must be idle in a row."""

IDLE = 0.1
"""The fraction of a core below which a process counts as idle."""

MAX_WAIT = 60.0
"""Seconds after which a comparison begins, even if the engine is busy."""


@dataclass(frozen=True)
class RunProgress:
    """The progress of the current run."""

    name: str
    state: str
    step: int
    seconds: float


PREPARING = RunProgress(ONE_DEVICE_NAME, "preparing", 0, 0.0)


def _load_by_core() -> float:
    """Return the load average of the last minute per core."""
    return float(psutil.getloadavg()[0]) / (os.cpu_count() or 1)


@dataclass
class ComparisonRunner:
    """Makes the runs of a ``request``, one after another; nothing is written back.

    Iterate over ``run()`` with a pause after each item; ``stop()`` ends it early.
    """

    request: Request
    source: str
    namespace: dict[str, Any]
    context: NotebookContext = field(default_factory=NotebookContext)
    trials: list[Trial] = field(init=False, default_factory=list)
    running: RunProgress | None = field(init=False, default=PREPARING)
    stopped: bool = field(init=False, default=False)
    machine: Machine = field(init=False, default_factory=probe)
    load: float = field(init=False, default_factory=_load_by_core)
    _execution: Execution | None = field(init=False, default=None)

    def run(self) -> Iterator[None]:
        """Make all runs; yield whenever the caller may update the display.

        Raises:
            SyntaxError, CellError, SerializationError: the cell cannot run at all.
        """
        try:
            yield from self._wait_for_preload()
            for entry in self.request.entries:
                if self.stopped or self.abort_reason:
                    break
                yield from self._run_entry(entry)
        finally:
            self.running = None

    @property
    def baseline(self) -> Trial | None:
        """The run on one device, if it has been measured."""
        return next((trial for trial in self.trials if trial.is_baseline), None)

    @property
    def abort_reason(self) -> str:
        """Why further runs would show nothing new; usually empty."""
        baseline = self.baseline
        if baseline is None:
            return ""
        if (
            baseline.state == "failed"
            and not baseline.timing.steps
            and "memory" not in baseline.reason.lower()
        ):
            return "The cell fails on one device"
        if baseline.state == "finished" and not baseline.timing.steps:
            return "The cell takes no optimizer step"
        return ""

    def _wait_for_preload(self) -> Iterator[None]:
        """Wait until the engine has imported what the ranks need.

        Otherwise only the first run, on one device, would bear that cost.
        """
        strategies = {entry.strategy for entry in self.request.entries}
        engine = get_engine(self.request.engine)
        engine.preload(module for name in strategies for module in profile_of(name).modules)
        begun = looked = time.monotonic()
        used, quiet = engine.preload_cpu_seconds(), 0
        while quiet < IDLE_SAMPLES and looked - begun < MAX_WAIT and not self.stopped:
            yield
            if (now := time.monotonic()) - looked < SAMPLING_INTERVAL:
                continue
            used, before = engine.preload_cpu_seconds(), used
            quiet = quiet + 1 if used - before < IDLE * (now - looked) else 0
            looked = now

    def stop(self) -> None:
        """Stop the current run and keep its measurements; a second call kills it."""
        self.stopped = True
        if self._execution is not None:
            self._execution.interrupt()

    @property
    def comparison(self) -> Comparison:
        """The result so far."""
        left = len(self.request.entries) - len(self.trials)
        why = "Stopped" if self.stopped else self.abort_reason
        left_out = left if why else 0
        return Comparison(self.request, tuple(self.trials), self.machine, left_out, why, self.load)

    def _run_entry(self, entry: Entry) -> Iterator[None]:
        begun = time.time()
        name = self._title(entry)
        self.running = RunProgress(name, "preparing", 0, 0.0)
        yield
        if entry.options is None:
            self.trials.append(refused(entry, entry.problem))
            return
        execution = Execution(
            self.source, self.namespace, entry.options, self.context, tracks=False
        )
        try:
            execution.prepare()
            if self.stopped:
                return
            execution.start()
        except (OptionError, StrategyError, LaunchError) as error:
            self.trials.append(refused(entry, str(error)))
            return
        self._execution = execution
        if self.stopped:  # stopped while the run was starting
            execution.interrupt()
        running_since: dict[int, float] = {}
        try:
            while not execution.over or self._starts_again(execution):
                execution.sync()
                _record_start_times(execution.run.poll(), running_since)
                if self._starts_again(execution):
                    execution.discard()
                    execution.restart()
                    running_since.clear()
                self._update_progress(name, execution, begun)
                yield
            execution.sync()
        finally:
            self._execution = None
            execution.abandon()
        _record_start_times(execution.run.poll(), running_since)
        write_digest(execution.run)
        all_run = len(running_since) == execution.run.record.world_size
        start_up = max(running_since.values()) - begun if all_run else None
        launch = LaunchCost(execution.bundle.nbytes, start_up)
        self.trials.append(measured(entry, execution.run, launch, self.baseline))

    def _title(self, entry: Entry) -> str:
        """Return what the run is called while it lasts."""
        if entry.is_baseline:
            return ONE_DEVICE_NAME
        on = f" on {format_count(entry.nodes, 'node')}" if entry.nodes else ""
        return f"{entry.strategy}{on}"

    def _starts_again(self, execution: Execution) -> bool:
        """Return whether a run is to start again; its last event may say so, too."""
        return execution.is_to_restart and not self.stopped

    def _update_progress(self, name: str, execution: Execution, begun: float) -> None:
        view = execution.run.view
        steps = view.progress.get("steps")
        step = steps.step if steps else 0
        queued = None if view.launcher else view.notices.get(QUEUED)
        state = queued.text if queued else view.state
        self.running = RunProgress(name, state, step, time.time() - begun)


def _record_start_times(events: list[Event], running_since: dict[int, float]) -> None:
    """Record when each rank started to run the cell."""
    for event in events:
        if isinstance(event, Status) and event.state == "running":
            running_since.setdefault(event.rank, event.time)
