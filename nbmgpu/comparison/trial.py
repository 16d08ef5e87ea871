"""One row of a comparison: what a run of a few steps has shown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from nbmgpu.formatting import format_count
from nbmgpu.report.curves import RATES, curve_names
from nbmgpu.report.run_line import failure_sentence
from nbmgpu.runs.events import RunState
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView
from nbmgpu.strategies import profile_of

from .request import Entry

ONE_DEVICE_NAME = "one device"

DIFFERS = {
    "random-step": "draws other random numbers than one device (dropout, noise)",
    "random-data": "draws other random numbers for its samples than one device (augmentation)",
    "batch-norm": "normalises each rank's share by itself (batch normalisation)",
    "random-host": "draws the same random numbers on every rank",
    "mixed-loss": "weighs a loss of several terms by one of them",
    "coupled-batch": "takes samples of a batch together, of which each rank has its share",
    "part-of-batch": "picks samples by their place in each rank's share",
    "by-place": "treats samples by their place in each rank's share",
    "in-pieces": "cuts each rank's share into pieces, and not the whole batch",
    "chosen-mean": "averages over samples chosen before the model sees them",
    "scaled-penalty": "divides a penalty by the size of each rank's share",
    "vector-loss": "begins its backward pass at several elements",
    "two-loaders": "trains on batches that split in different ways",
    "late-count": "took a count for a constant in its first steps",
    "walked-apart": "leaves out other batches on other ranks",
    "branches": "chooses its loss by what is in each rank's share",
    "came-apart": "has trained another model on other ranks",
    "buffers-apart": "keeps other values in buffers of the model on other ranks",
    "summed-loss": "averages sums over ranks' batches",
    "compress": "sends gradients in half precision",
}
"""Notices after which the loss need not be one device's, and what they say of the run."""

MAY_DIFFER = {
    "by-chance": "counts by numbers that may be the size of each rank's share",
    "by-sample": "adds up losses of single samples",
    "batch-sizes": "counts by the size of each rank's share",
    "size-asked": "asks for the size of each rank's share",
    "joined": "weighs ranks by samples and not by rows",
    "padded": "pads each rank's share by itself",
    "shaped-by-whole": "shapes each rank's share by the size of the whole batch",
    "other-rows": "joins each rank's share with the same others",
    "own-number": "reads numbers of each rank's share",
    "averaged-buffer": "averages buffers that each rank writes by its share",
    "own-gradient": "reads gradients of each rank's own loss",
    "own-values": "keeps values of each rank's share",
    "old-divisor": "divides its loss by a tensor that may be no count",
    "sum-beside": "adds a term that each rank has in full to a sum",
    "summed-penalty": "adds a penalty that each rank has in full to a sum",
    "time-first": "adds up along another dimension than that of samples first",
    "unread-loss": "takes its loss from code that does not tell how it reduces",
    "reads-ahead": "reads batches ahead of those it trains on",
    "same-batch": "takes several steps on a batch",
    "tensor-hooks": "has hooks on each rank's own gradients",
}
"""Notices that explain why a loss is not one device's, where it is not: as a rule it is."""

EXACT, HALF = 1e-3, 2e-2
"""Relative differences of the loss that are rounding: in float32, and in half precision."""


@dataclass(frozen=True)
class Trial:
    """What one run has shown; None where it has shown nothing.

    Attributes:
        name: the strategy, or ``one device``.
        ranks: how many there were; 0 if the run was refused before that was known.
        state: as of a run (finished, failed, stopped, timeout, lost), or ``refused``.
        reason: why it was not measured to the end, in one sentence; empty if it was.
        line: the ``%%mgpu`` line that trains in this way; empty for one device.
        steps: optimizer steps taken.
        warm_up: how many of them, the first ones, do not count in the times.
        step_time: seconds per optimizer step: the median, of the rank that has the largest.
        samples_per_second: of all ranks together.
        speed_up: against one device, by samples per second or else by time per step.
        efficiency: speed-up by rank.
        peak_memory: the peak of the rank that needed most, in bytes.
        held_memory: what the tensors of the rank that has most take between steps, in bytes.
        loss: at the last step.
        loss_difference: that loss minus one device's at the same step.
        agrees: whether that is rounding, or ``chance`` says why it need not be.
        split: whether ranks have shared the work; if not, each has done all of it.
        chance: why the loss may differ from one device's; mostly empty.
        shipped: bytes sent to the ranks.
        start_up: seconds from the request until all ranks ran the cell.
        run: the run's id; empty if it was refused.
    """

    name: str
    ranks: int
    state: RunState | Literal["refused"]
    reason: str = ""
    line: str = ""
    steps: int = 0
    warm_up: int = 0
    step_time: float | None = None
    samples_per_second: float | None = None
    speed_up: float | None = None
    efficiency: float | None = None
    peak_memory: int | None = None
    held_memory: int | None = None
    loss: float | None = None
    loss_difference: float | None = None
    agrees: bool = False
    split: bool = True
    chance: str = ""
    shipped: int | None = None
    start_up: float | None = None
    run: str = ""

    @property
    def alone(self) -> bool:
        """Whether this is the run on one device."""
        return self.name == ONE_DEVICE_NAME

    def rate(self, counted: bool) -> float:
        """How fast it was: samples per second, or steps where samples are not ``counted``."""
        if counted:
            return self.samples_per_second or 0.0
        return 1 / self.step_time if self.step_time else 0.0

    @property
    def sound(self) -> bool:
        """Whether it ran to its end, was timed, shared the work, and learned as one device does."""
        finished = self.state == "finished" and self.step_time is not None
        return finished and self.split and self.agrees


def refused(entry: Entry, reason: str) -> Trial:
    """Return the row of a run that could not begin."""
    return Trial(_name(entry), entry.ranks or 0, "refused", _sentence(reason), entry.line)


def measured(
    entry: Entry, run: Run, shipped: int, start_up: float | None, alone: Trial | None
) -> Trial:
    """Return the row of a run that is over; ``alone`` is that of one device, if there is one."""
    state = run.state
    times = times_of(run.view)
    loss = loss_at_the_end(run.view)
    trial = Trial(
        name=_name(entry),
        ranks=_devices(run.record.devices),
        state=state,
        reason=_sentence(_why(run, state, times)),
        line=entry.line,
        steps=times.steps,
        warm_up=times.warm_up,
        step_time=times.step_time,
        samples_per_second=times.samples_per_second,
        peak_memory=peak_memory(run.view) if times.step_time else None,
        held_memory=held_memory(run.view) if times.step_time else None,
        loss=loss,
        split=_split(run),
        chance=_explained(DIFFERS, run),
        shipped=shipped,
        start_up=start_up,
        run=run.id,
    )
    precision = entry.options.precision if entry.options else None
    tolerance = EXACT if precision in (None, "fp32") else HALF
    return _against(trial, trial if entry.alone else alone, tolerance, _explained(MAY_DIFFER, run))


@dataclass(frozen=True)
class Times:
    """Steps taken, how many of them are warm-up, and the pace of the others."""

    steps: int
    warm_up: int
    step_time: float | None = None
    samples_per_second: float | None = None


def warm_up(steps: int) -> int:
    """Return how many of so many steps are left out: a quarter, at least 1 and at most 5."""
    return max(1, min(5, steps // 4))


def times_of(view: RunView) -> Times:
    """Return how fast the ranks took their steps."""
    told = [rank.measured for rank in view.ranks if rank.measured is not None]
    steps = min((m.steps for m in told), default=0)
    left_out = warm_up(steps)
    if len(told) < len(view.ranks) or steps <= left_out:
        return Times(steps, left_out)
    # The first step is not among them: nobody knows when it began.
    seconds = max(statistics.median(m.seconds[left_out - 1 :]) for m in told)
    samples = statistics.mean(told[0].samples[left_out - 1 :])
    return Times(steps, left_out, seconds, samples / seconds if samples and seconds else None)


def peak_memory(view: RunView) -> int | None:
    """Return the most memory that a rank needed: its GPU's if it has one, else the host's."""
    told = [rank.measured for rank in view.ranks if rank.measured is not None]
    peaks = [m.gpu_memory if m.gpu_memory >= 0 else m.memory for m in told]
    return max(peaks, default=None)


def held_memory(view: RunView) -> int | None:
    """Return what the tensors of the rank that has most take between steps."""
    return max((r.measured.held for r in view.ranks if r.measured is not None), default=None)


def loss_at_the_end(view: RunView) -> float | None:
    """Return the newest value of the curve that stands for the loss, if there is one."""
    names = [name for name in curve_names(view) if name not in RATES and name.split()[0] != "lr"]
    return view.curves[names[0]].last if names else None


def _split(run: Run) -> bool:
    """Tell whether ranks shared the work; what a cell shares by itself is not seen."""
    shares = profile_of(run.record.strategy).shards_data or run.record.world_size == 1
    return shares and "not-sharded" not in run.view.notices


def _devices(devices: Iterable[str]) -> int:
    """Return how many devices have worked: one rank of ``dp`` may have several (``cuda:0,1``)."""
    return sum(len(device.split(",")) for device in devices)


def _name(entry: Entry) -> str:
    return ONE_DEVICE_NAME if entry.alone else entry.strategy


def _why(run: Run, state: RunState, times: Times) -> str:
    if state == "stopped":
        return "you stopped it"
    if why := failure_sentence(run, state):
        return why
    if not times.steps:
        return "the cell took no optimizer step"
    if times.step_time is None:
        return f"the cell took {format_count(times.steps, 'step')} only, too few to be timed"
    return ""


def _explained(topics: dict[str, str], run: Run) -> str:
    return "; ".join(why for topic, why in topics.items() if topic in run.view.notices)


def _sentence(text: str) -> str:
    """Return the first line of ``text`` with a full stop, and its first letter as it is."""
    first = text.strip().partition("\n")[0].rstrip(".")
    return f"{first}." if first else ""


def _against(trial: Trial, alone: Trial | None, tolerance: float, may_differ: str = "") -> Trial:
    """Return ``trial`` with what it is beside one device, if that was measured.

    ``may_differ`` explains a loss that is not one device's.
    """
    if alone is None or alone.step_time is None:
        return replace(trial, agrees=True)
    speed_up = difference = None
    if trial.split and trial.samples_per_second and alone.samples_per_second:
        speed_up = trial.samples_per_second / alone.samples_per_second
    elif trial.split and trial.step_time and alone.step_time:
        speed_up = alone.step_time / trial.step_time
    if trial.loss is not None and alone.loss is not None and trial.steps == alone.steps:
        # Not a number on both sides is one device's loss; on one side it is not.
        both = math.isnan(trial.loss) and math.isnan(alone.loss)
        difference = None if both else trial.loss - alone.loss
    near = difference is None
    if difference is not None and alone.loss is not None:
        near = abs(difference) <= tolerance * max(abs(alone.loss), 1e-6)
    chance = "; ".join(filter(None, [trial.chance, "" if near else may_differ]))
    return replace(
        trial,
        speed_up=speed_up,
        efficiency=speed_up / trial.ranks if speed_up is not None else None,
        loss_difference=difference,
        chance=chance,
        agrees=near or bool(chance),
    )
