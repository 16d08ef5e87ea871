"""Measurements of one run: its steps, memory, loss and launch. None means not measured."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from nbmgpu.report.curves import RATES, curve_names
from nbmgpu.runs.view import RunView


@dataclass(frozen=True)
class StepTiming:
    """The optimizer steps of a run, and how long they took.

    Attributes:
        steps: optimizer steps taken.
        warm_up: how many of the first steps are not timed.
        step_time: median seconds per optimizer step, of the slowest rank.
        samples_per_second: of all ranks together.
        sent: median bytes that a rank sends per optimizer step, of the rank that sends most.
        collectives: median number of collectives of a rank per optimizer step.
    """

    steps: int = 0
    warm_up: int = 0
    step_time: float | None = None
    samples_per_second: float | None = None
    sent: float | None = None
    collectives: float | None = None

    def rate(self, counted: bool) -> float:
        """Samples per second, or steps per second where samples are not ``counted``."""
        if counted:
            return self.samples_per_second or 0.0
        return 1 / self.step_time if self.step_time else 0.0

    def speed_up(self, baseline: StepTiming) -> float | None:
        """Return the ratio to ``baseline``, by samples per second or else by time per step."""
        if self.samples_per_second and baseline.samples_per_second:
            return self.samples_per_second / baseline.samples_per_second
        if self.step_time and baseline.step_time:
            return baseline.step_time / self.step_time
        return None


@dataclass(frozen=True)
class MemoryUse:
    """The memory of a run, in bytes.

    Attributes:
        peak: of the rank with the highest peak.
        held: tensors between steps, of the rank that holds most.
    """

    peak: int | None = None
    held: int | None = None


@dataclass(frozen=True)
class FinalLoss:
    """The loss at the last step, and how it compares with one device's.

    Attributes:
        value: the loss.
        difference: the loss minus one device's at the same step.
        agrees: whether the difference is rounding or has an ``explanation``.
        explanation: why the loss may differ from one device's; usually empty.
    """

    value: float | None = None
    difference: float | None = None
    agrees: bool = False
    explanation: str = ""

    def compared(self, baseline: float | None, tolerance: float, may_differ: str = "") -> FinalLoss:
        """Return this loss with its difference from ``baseline``, the loss of one device.

        Args:
            baseline: None if it was not measured, or at another step.
            tolerance: relative difference that counts as rounding.
            may_differ: explains a loss that differs; it is ignored if the loss does not.
        """
        difference = None
        if self.value is not None and baseline is not None:
            # NaN on both sides agrees; NaN on one side does not.
            both = math.isnan(self.value) and math.isnan(baseline)
            difference = None if both else self.value - baseline
        near = difference is None
        if difference is not None and baseline is not None:
            near = abs(difference) <= tolerance * max(abs(baseline), 1e-6)
        explanation = "; ".join(filter(None, [self.explanation, "" if near else may_differ]))
        return replace(
            self, difference=difference, agrees=near or bool(explanation), explanation=explanation
        )


@dataclass(frozen=True)
class LaunchCost:
    """The cost of starting a run.

    Attributes:
        sent: bytes sent to the ranks.
        start_up: seconds from the request until all ranks ran the cell.
    """

    sent: int | None = None
    start_up: float | None = None


def warm_up(steps: int) -> int:
    """Return the number of warm-up steps: a quarter of ``steps``, from 1 to 5."""
    return max(1, min(5, steps // 4))


def step_timing(view: RunView) -> StepTiming:
    """Return how fast the ranks stepped."""
    reported = [rank.measured for rank in view.ranks if rank.measured is not None]
    steps = min((m.steps for m in reported), default=0)
    left_out = warm_up(steps)
    if len(reported) < len(view.ranks) or steps <= left_out:
        return StepTiming(steps, left_out)
    # The first step is not included: its start is unknown.
    seconds = max(statistics.median(m.seconds[left_out - 1 :]) for m in reported)
    samples = statistics.mean(reported[0].samples[left_out - 1 :])
    rate = samples / seconds if samples and seconds else None
    sent = max(statistics.median(m.sent[left_out - 1 :] or [0]) for m in reported)
    calls = max(statistics.median(m.collectives[left_out - 1 :] or [0]) for m in reported)
    return StepTiming(steps, left_out, seconds, rate, sent, calls)


def memory_use(view: RunView) -> MemoryUse:
    """Return the peak and held memory of the ranks; peaks are of GPUs if there are any."""
    reported = [rank.measured for rank in view.ranks if rank.measured is not None]
    peaks = [m.gpu_memory if m.gpu_memory >= 0 else m.memory for m in reported]
    return MemoryUse(max(peaks, default=None), max((m.held for m in reported), default=None))


def loss_at_the_end(view: RunView) -> float | None:
    """Return the last value of the loss curve, if there is one."""
    names = [name for name in curve_names(view) if name not in RATES and name.split()[0] != "lr"]
    return view.curves[names[0]].last if names else None
