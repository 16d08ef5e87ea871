"""One row of a comparison: the measurements of one run of a few steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from nbmgpu.formatting import format_count
from nbmgpu.report.run_line import failure_sentence
from nbmgpu.runs.events import RunState
from nbmgpu.runs.number_topics import DIFFERS, MAY_DIFFER
from nbmgpu.runs.run import Run
from nbmgpu.strategies import profile_of

from .measurements import (
    FinalLoss,
    LaunchCost,
    MemoryUse,
    StepTiming,
    loss_at_the_end,
    memory_use,
    step_timing,
)
from .request import Entry

ONE_DEVICE_NAME = "one device"

UNSHARED = frozenset({"not-sharded", "no-sequence", "no-batch"})
"""Notices that every rank has done all of the work."""

EXACT, HALF = 1e-3, 2e-2
"""Relative differences of the loss that count as rounding, in float32 and in half precision."""


@dataclass(frozen=True)
class Trial:
    """The measurements of one run.

    Attributes:
        name: the strategy, or ``one device``.
        ranks: how many there were; 0 if the run was refused before that was known.
        nodes: on how many machines they were.
        state: that of the run (finished, failed, stopped, timeout, lost), or ``refused``.
        reason: why the measurement is incomplete, in one sentence; empty if it is complete.
        line: the ``%%mgpu`` line that trains in this way; empty for one device.
        timing: its optimizer steps.
        memory: of its ranks.
        loss: at the last step.
        launch: the cost of starting it.
        speed_up: against one device, by samples per second or else by time per step.
        sharded: whether ranks shared the work; if not, each did all of it.
        run: the run's id; empty if it was refused.
        on_gpu: whether its ranks used GPUs.
    """

    name: str
    ranks: int
    state: RunState | Literal["refused"]
    reason: str = ""
    line: str = ""
    timing: StepTiming = field(default_factory=StepTiming)
    memory: MemoryUse = field(default_factory=MemoryUse)
    loss: FinalLoss = field(default_factory=FinalLoss)
    launch: LaunchCost = field(default_factory=LaunchCost)
    speed_up: float | None = None
    sharded: bool = True
    run: str = ""
    nodes: int = 1
    on_gpu: bool = False

    @property
    def is_baseline(self) -> bool:
        """Whether this is the run on one device."""
        return self.name == ONE_DEVICE_NAME

    @property
    def efficiency(self) -> float | None:
        """Speed-up divided by the number of ranks."""
        return None if self.speed_up is None else self.speed_up / self.ranks

    @property
    def is_timed(self) -> bool:
        """Whether it took enough steps to time."""
        return self.timing.step_time is not None

    @property
    def is_comparable(self) -> bool:
        """Whether it finished, was timed, shared the work, and its loss agrees with one device."""
        finished = self.state == "finished" and self.is_timed
        return finished and self.sharded and self.loss.agrees

    def as_row(self) -> dict[str, object]:
        """Return all values by column, as in a data frame; times in seconds, memory in bytes."""
        return {
            "name": self.name,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "state": self.state,
            "reason": self.reason,
            "line": self.line,
            "steps": self.timing.steps,
            "warm_up": self.timing.warm_up,
            "step_time": self.timing.step_time,
            "samples_per_second": self.timing.samples_per_second,
            "sent_per_step": self.timing.sent,
            "collectives_per_step": self.timing.collectives,
            "speed_up": self.speed_up,
            "efficiency": self.efficiency,
            "peak_memory": self.memory.peak,
            "held_memory": self.memory.held,
            "loss": self.loss.value,
            "loss_difference": self.loss.difference,
            "agrees": self.loss.agrees,
            "sharded": self.sharded,
            "explanation": self.loss.explanation,
            "sent": self.launch.sent,
            "start_up": self.launch.start_up,
            "run": self.run,
        }


COLUMNS = tuple(Trial("", 0, "refused").as_row())
"""The columns of ``Trial.as_row``."""


def refused(entry: Entry, reason: str) -> Trial:
    """Return the row of a run that could not start."""
    return Trial(
        name=_name(entry),
        ranks=entry.ranks or 0,
        state="refused",
        reason=_sentence(reason),
        line=entry.line,
        nodes=entry.nodes or 1,
    )


def measured(entry: Entry, run: Run, launch: LaunchCost, baseline: Trial | None) -> Trial:
    """Return the row of a run that is over; ``baseline`` is the row of one device, if any."""
    state = run.state
    timing = step_timing(run.view)
    trial = Trial(
        name=_name(entry),
        ranks=_devices(run.record.devices),
        state=state,
        reason=_sentence(_why(run, state, timing)),
        line=entry.line,
        timing=timing,
        memory=memory_use(run.view) if timing.step_time else MemoryUse(),
        loss=FinalLoss(loss_at_the_end(run.view), explanation=_explained(DIFFERS, run)),
        launch=launch,
        sharded=_is_sharded(run),
        run=run.id,
        nodes=run.record.nodes,
        on_gpu=any(device.startswith("cuda") for device in run.record.devices),
    )
    precision = entry.options.precision if entry.options else None
    tolerance = EXACT if precision in (None, "fp32") else HALF
    return _compared(
        trial, trial if entry.is_baseline else baseline, tolerance, _explained(MAY_DIFFER, run)
    )


def _is_sharded(run: Run) -> bool:
    """Return whether ranks shared the work; a cell's own distribution is not detected."""
    shares = profile_of(run.record.options.strategy).shards_data or run.record.world_size == 1
    return shares and not UNSHARED & run.view.notices.keys()


def _devices(devices: Iterable[str]) -> int:
    """Return the number of devices; one rank of ``dp`` may have several (``cuda:0,1``)."""
    return sum(len(device.split(",")) for device in devices)


def _name(entry: Entry) -> str:
    return ONE_DEVICE_NAME if entry.is_baseline else entry.strategy


def _why(run: Run, state: RunState, timing: StepTiming) -> str:
    if state == "stopped":
        return "stopped by the user"
    if why := failure_sentence(run, state):
        return why
    if not timing.steps:
        return "the cell took no optimizer step"
    if timing.step_time is None:
        return f"the cell took {format_count(timing.steps, 'step')} only, too few to time"
    return ""


def _explained(topics: dict[str, str], run: Run) -> str:
    return "; ".join(why for topic, why in topics.items() if topic in run.view.notices)


def _sentence(text: str) -> str:
    """Return the first line of ``text`` with a full stop."""
    first = text.strip().partition("\n")[0].rstrip(".")
    return f"{first}." if first else ""


def _compared(
    trial: Trial, baseline: Trial | None, tolerance: float, may_differ: str = ""
) -> Trial:
    """Return ``trial`` with its speed-up and loss difference against ``baseline``, if measured.

    ``may_differ`` explains a loss that differs.
    """
    if baseline is None or not baseline.is_timed:
        return replace(trial, loss=replace(trial.loss, agrees=True))
    same_step = trial.timing.steps == baseline.timing.steps
    return replace(
        trial,
        speed_up=trial.timing.speed_up(baseline.timing) if trial.sharded else None,
        loss=trial.loss.compared(baseline.loss.value if same_step else None, tolerance, may_differ),
    )
