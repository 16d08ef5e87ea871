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
from nbmgpu.kernel.execution import Execution
from nbmgpu.kernel.notebook_context import NotebookContext
from nbmgpu.report.digest import write_digest
from nbmgpu.runs.events import Event, Status
from nbmgpu.strategies import profile_of

from .comparison import Comparison
from .request import Entry, Request
from .trial import ONE_DEVICE_NAME, Trial, measured, refused

LOOK, QUIET_LOOKS = 0.2, 3
"""Seconds between looks at the launch server, and how often it must be found at rest."""

IDLE = 0.1
"""The part of a core below which a process rests."""

LONGEST_WAIT = 60.0
"""Seconds after which a comparison begins, whatever the launch server does."""


@dataclass(frozen=True)
class Running:
    """The run under way: how far it is."""

    name: str
    state: str
    step: int
    seconds: float


READY = Running(ONE_DEVICE_NAME, "getting ready", 0, 0.0)


def _load_by_core() -> float:
    """Return how many processes of the last minute there were for each core of the machine."""
    return float(psutil.getloadavg()[0]) / (os.cpu_count() or 1)


@dataclass
class Contest:
    """Runs ``source`` as ``request`` says; what comes back to ``namespace`` is nothing at all.

    ``course`` is to be gone through with a rest between its turns; ``stop`` ends it early.
    """

    request: Request
    source: str
    namespace: dict[str, Any]
    surroundings: NotebookContext = field(default_factory=NotebookContext)
    trials: list[Trial] = field(init=False, default_factory=list)
    running: Running | None = field(init=False, default=READY)
    stopped: bool = field(init=False, default=False)
    machine: Machine = field(init=False, default_factory=probe)
    load: float = field(init=False, default_factory=_load_by_core)
    _execution: Execution | None = field(init=False, default=None)

    def course(self) -> Iterator[None]:
        """Make all runs, turn by turn.

        Raises:
            SyntaxError, CellError, SerializationError: the cell cannot run anywhere.
        """
        try:
            yield from self._settle()
            for entry in self.request.entries:
                if self.stopped or self.hopeless:
                    break
                yield from self._try(entry)
        finally:
            self.running = None

    @property
    def alone(self) -> Trial | None:
        """The run on one device, if it has been made."""
        return next((trial for trial in self.trials if trial.alone), None)

    @property
    def hopeless(self) -> str:
        """Why no other run would tell more than that of one device; mostly nothing."""
        alone = self.alone
        if alone is None:
            return ""
        if alone.state == "failed" and not alone.steps and "memory" not in alone.reason.lower():
            return "The cell fails on one device"
        if alone.state == "finished" and not alone.steps:
            return "The cell takes no optimizer step"
        return ""

    def _settle(self) -> Iterator[None]:
        """Wait until the launch server has imported what ranks will need, and rests.

        Else the first run, that of one device, would be the only one to pay for that.
        """
        strategies = {entry.strategy for entry in self.request.entries}
        engine = get_engine()
        engine.preload(module for name in strategies for module in profile_of(name).modules)
        begun = looked = time.monotonic()
        used, quiet = engine.preload_cpu_seconds(), 0
        while quiet < QUIET_LOOKS and looked - begun < LONGEST_WAIT and not self.stopped:
            yield
            if (now := time.monotonic()) - looked < LOOK:
                continue
            used, before = engine.preload_cpu_seconds(), used
            quiet = quiet + 1 if used - before < IDLE * (now - looked) else 0
            looked = now

    def stop(self) -> None:
        """End the run under way, keeping its measures, and begin no other; twice: at once."""
        self.stopped = True
        if self._execution is not None:
            self._execution.interrupt()

    @property
    def comparison(self) -> Comparison:
        """What is known so far."""
        left = len(self.request.entries) - len(self.trials)
        why = "Stopped" if self.stopped else self.hopeless
        left_out = left if why else 0
        return Comparison(self.request, tuple(self.trials), self.machine, left_out, why, self.load)

    def _try(self, entry: Entry) -> Iterator[None]:
        begun = time.time()
        name = ONE_DEVICE_NAME if entry.alone else entry.strategy
        self.running = Running(name, "preparing", 0, 0.0)
        yield
        if entry.options is None:
            self.trials.append(refused(entry, entry.problem))
            return
        execution = Execution(
            self.source, self.namespace, entry.options, self.surroundings, tracks=False
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
        if self.stopped:  # in the moment before
            execution.interrupt()
        running_since: dict[int, float] = {}
        try:
            while not execution.over:
                _note_beginnings(execution.run.poll(), running_since)
                self._tell(name, execution, begun)
                yield
        finally:
            self._execution = None
            execution.abandon()
        _note_beginnings(execution.run.poll(), running_since)
        write_digest(execution.run)
        all_run = len(running_since) == execution.run.record.world_size
        start_up = max(running_since.values()) - begun if all_run else None
        self.trials.append(
            measured(entry, execution.run, execution.bundle.nbytes, start_up, self.alone)
        )

    def _tell(self, name: str, execution: Execution, begun: float) -> None:
        view = execution.run.view
        steps = view.progress.get("steps")
        step = steps.step if steps else 0
        self.running = Running(name, view.state, step, time.time() - begun)


def _note_beginnings(events: list[Event], running_since: dict[int, float]) -> None:
    """Note when each rank began to run the cell."""
    for event in events:
        if isinstance(event, Status) and event.state == "running":
            running_since.setdefault(event.rank, event.time)
