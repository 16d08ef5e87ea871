"""One row of a comparison: the measurements of one run of a few steps."""

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
    "batch-norm": "normalizes over each rank's shard (batch normalization)",
    "random-host": "draws the same random numbers on every rank",
    "mixed-loss": "weights a loss of several terms by one of them",
    "coupled-batch": "lets samples of a batch interact, and each rank has only its shard",
    "part-of-batch": "picks samples by their position in each rank's shard",
    "by-place": "treats samples by their position in each rank's shard",
    "in-pieces": "splits each rank's shard into pieces, not the whole batch",
    "chosen-mean": "averages over samples chosen before the model",
    "scaled-penalty": "divides a penalty by the size of each rank's shard",
    "vector-loss": "calls backward() on several elements",
    "two-loaders": "trains on batches that shard in different ways",
    "late-count": "used a count as a constant in its first steps",
    "walked-apart": "skips different batches on different ranks",
    "branches": "chooses its loss by the contents of each rank's shard",
    "came-apart": "has trained different models on different ranks",
    "buffers-apart": "has different buffers on different ranks",
    "summed-loss": "averages summed losses over ranks",
    "compress": "reduces gradients in half precision",
}
"""Notices after which the loss may differ from one device's, and why."""

MAY_DIFFER = {
    "by-chance": "counts by numbers that may be the size of each rank's shard",
    "by-sample": "adds up losses of single samples",
    "batch-sizes": "counts by the size of each rank's shard",
    "size-asked": "tests the size of each rank's shard",
    "joined": "weights ranks by samples, not rows",
    "padded": "pads each rank's shard separately",
    "shaped-by-whole": "reshapes each rank's shard by the size of the whole batch",
    "other-rows": "joins each rank's shard with the same other rows",
    "own-number": "reads numbers off each rank's shard",
    "averaged-buffer": "averages buffers that each rank updates from its shard",
    "own-gradient": "reads gradients of each rank's own loss",
    "own-values": "keeps values of each rank's shard",
    "old-divisor": "divides its loss by a tensor that may not be a count",
    "sum-beside": "adds a term that every rank has in full to a sum",
    "summed-penalty": "adds a penalty that every rank has in full to a sum",
    "time-first": "reduces another dimension before that of samples",
    "unread-loss": "gets its loss from code that hides its reduction",
    "reads-ahead": "prefetches batches",
    "same-batch": "takes several steps on one batch",
    "tensor-hooks": "has hooks on each rank's own gradients",
}
"""Notices that explain a loss that differs from one device's; usually it does not."""

EXACT, HALF = 1e-3, 2e-2
"""Relative differences of the loss that count as rounding, in float32 and in half precision."""


@dataclass(frozen=True)
class Trial:
    """The measurements of one run; None for what was not measured.

    Attributes:
        name: the strategy, or ``one device``.
        ranks: how many there were; 0 if the run was refused before that was known.
        state: that of the run (finished, failed, stopped, timeout, lost), or ``refused``.
        reason: why the measurement is incomplete, in one sentence; empty if it is complete.
        line: the ``%%mgpu`` line that trains in this way; empty for one device.
        steps: optimizer steps taken.
        warm_up: how many of the first steps are not timed.
        step_time: median seconds per optimizer step, of the slowest rank.
        samples_per_second: of all ranks together.
        speed_up: against one device, by samples per second or else by time per step.
        efficiency: speed-up divided by the number of ranks.
        peak_memory: of the rank with the highest peak, in bytes.
        held_memory: tensors between steps, of the rank that holds most, in bytes.
        loss: at the last step.
        loss_difference: that loss minus one device's at the same step.
        agrees: whether the difference is rounding or has an ``explanation``.
        sharded: whether ranks shared the work; if not, each did all of it.
        explanation: why the loss may differ from one device's; usually empty.
        sent: bytes sent to the ranks.
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
    sharded: bool = True
    explanation: str = ""
    sent: int | None = None
    start_up: float | None = None
    run: str = ""

    @property
    def is_baseline(self) -> bool:
        """Whether this is the run on one device."""
        return self.name == ONE_DEVICE_NAME

    def rate(self, counted: bool) -> float:
        """Samples per second, or steps per second where samples are not ``counted``."""
        if counted:
            return self.samples_per_second or 0.0
        return 1 / self.step_time if self.step_time else 0.0

    @property
    def is_comparable(self) -> bool:
        """Whether it finished, was timed, shared the work, and its loss agrees with one device."""
        finished = self.state == "finished" and self.step_time is not None
        return finished and self.sharded and self.agrees


def refused(entry: Entry, reason: str) -> Trial:
    """Return the row of a run that could not start."""
    return Trial(_name(entry), entry.ranks or 0, "refused", _sentence(reason), entry.line)


def measured(
    entry: Entry, run: Run, sent: int, start_up: float | None, baseline: Trial | None
) -> Trial:
    """Return the row of a run that is over; ``baseline`` is the row of one device, if any."""
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
        sharded=_is_sharded(run),
        explanation=_explained(DIFFERS, run),
        sent=sent,
        start_up=start_up,
        run=run.id,
    )
    precision = entry.options.precision if entry.options else None
    tolerance = EXACT if precision in (None, "fp32") else HALF
    return _compared(
        trial, trial if entry.is_baseline else baseline, tolerance, _explained(MAY_DIFFER, run)
    )


@dataclass(frozen=True)
class Times:
    """Steps taken, how many of them are warm-up, and the time of the others."""

    steps: int
    warm_up: int
    step_time: float | None = None
    samples_per_second: float | None = None


def warm_up(steps: int) -> int:
    """Return the number of warm-up steps: a quarter of ``steps``, from 1 to 5."""
    return max(1, min(5, steps // 4))


def times_of(view: RunView) -> Times:
    """Return how fast the ranks stepped."""
    reported = [rank.measured for rank in view.ranks if rank.measured is not None]
    steps = min((m.steps for m in reported), default=0)
    left_out = warm_up(steps)
    if len(reported) < len(view.ranks) or steps <= left_out:
        return Times(steps, left_out)
    # The first step is not included: its start is unknown.
    seconds = max(statistics.median(m.seconds[left_out - 1 :]) for m in reported)
    samples = statistics.mean(reported[0].samples[left_out - 1 :])
    return Times(steps, left_out, seconds, samples / seconds if samples and seconds else None)


def peak_memory(view: RunView) -> int | None:
    """Return the highest peak of a rank, in bytes: of its GPU if it has one, else of the host."""
    reported = [rank.measured for rank in view.ranks if rank.measured is not None]
    peaks = [m.gpu_memory if m.gpu_memory >= 0 else m.memory for m in reported]
    return max(peaks, default=None)


def held_memory(view: RunView) -> int | None:
    """Return the bytes of tensors between steps, of the rank that holds most."""
    return max((r.measured.held for r in view.ranks if r.measured is not None), default=None)


def loss_at_the_end(view: RunView) -> float | None:
    """Return the last value of the loss curve, if there is one."""
    names = [name for name in curve_names(view) if name not in RATES and name.split()[0] != "lr"]
    return view.curves[names[0]].last if names else None


def _is_sharded(run: Run) -> bool:
    """Tell whether ranks shared the work; a cell's own distribution is not detected."""
    shares = profile_of(run.record.strategy).shards_data or run.record.world_size == 1
    return shares and "not-sharded" not in run.view.notices


def _devices(devices: Iterable[str]) -> int:
    """Return the number of devices; one rank of ``dp`` may have several (``cuda:0,1``)."""
    return sum(len(device.split(",")) for device in devices)


def _name(entry: Entry) -> str:
    return ONE_DEVICE_NAME if entry.is_baseline else entry.strategy


def _why(run: Run, state: RunState, times: Times) -> str:
    if state == "stopped":
        return "stopped by the user"
    if why := failure_sentence(run, state):
        return why
    if not times.steps:
        return "the cell took no optimizer step"
    if times.step_time is None:
        return f"the cell took {format_count(times.steps, 'step')} only, too few to time"
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
    if baseline is None or baseline.step_time is None:
        return replace(trial, agrees=True)
    speed_up = difference = None
    if trial.sharded and trial.samples_per_second and baseline.samples_per_second:
        speed_up = trial.samples_per_second / baseline.samples_per_second
    elif trial.sharded and trial.step_time and baseline.step_time:
        speed_up = baseline.step_time / trial.step_time
    if trial.loss is not None and baseline.loss is not None and trial.steps == baseline.steps:
        # NaN on both sides agrees; NaN on one side does not.
        both = math.isnan(trial.loss) and math.isnan(baseline.loss)
        difference = None if both else trial.loss - baseline.loss
    near = difference is None
    if difference is not None and baseline.loss is not None:
        near = abs(difference) <= tolerance * max(abs(baseline.loss), 1e-6)
    chance = "; ".join(filter(None, [trial.explanation, "" if near else may_differ]))
    return replace(
        trial,
        speed_up=speed_up,
        efficiency=speed_up / trial.ranks if speed_up is not None else None,
        loss_difference=difference,
        explanation=chance,
        agrees=near or bool(chance),
    )
