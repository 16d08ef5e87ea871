"""Curves for the front end: metrics, throughput and step times, reduced to a few points."""

from __future__ import annotations

import base64
import math
import statistics
from dataclasses import dataclass

import numpy as np

from nbmgpu.formatting import format_communication
from nbmgpu.runs.curve import Curve
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView

from .text_format import number, plain, span

POINTS = 1000
"""Maximum points of a curve that are sent."""

ALL_POINTS = 8000
"""Maximum points of all metrics together."""

CURVES = 24
"""Maximum curves shown; ``Run.metrics`` has all."""

MAX_EPOCHS = 50
"""Maximum number of epochs whose ends are drawn."""

RATES = ("samples/s", "tokens/s")
"""Metrics that are shown as throughput."""

RANK_LINES = 8
"""Maximum ranks whose step times are drawn; of more ranks, only the slowest is."""

SYNCHRONIZING_IN_BACKWARD = ("ddp", "zero1")
"""Strategies whose ranks synchronize in backward passes only."""

HEARTBEATS, MIN_HEARTBEATS = 5, 3
"""Heartbeats over which ranks are compared, and the minimum: one may include an evaluation."""


@dataclass(frozen=True)
class CurveLine:
    """One metric, drawn.

    Attributes:
        name: of the metric.
        last: its newest value, formatted.
        finite: whether that value is finite.
        steps: the number of steps with a value.
        points: base64 of little-endian float32 pairs of step and value, at most ``POINTS``: the
            minimum and maximum of each bin of steps.
        means: likewise, the mean of each bin, for smoothing; empty where ``points`` is complete.
    """

    name: str
    last: str
    finite: bool
    steps: int
    points: str
    means: str = ""


@dataclass(frozen=True)
class CurveRequest:
    """A request for the steps from ``first`` to ``last`` of one metric."""

    name: str
    first: float
    last: float


@dataclass(frozen=True)
class Curves:
    """The metrics, the loss first.

    Attributes:
        shown: their lines.
        hidden: the number of those left out.
        epochs: the steps at which epochs of the training loader end, if there are at most
            ``MAX_EPOCHS``.
    """

    shown: list[CurveLine]
    hidden: int
    epochs: list[float]


@dataclass(frozen=True)
class Throughput:
    """How fast a run is.

    Attributes:
        rate, step_time: the newest values, formatted.
        sent: what a rank sends per step, such as ``3.0 MiB in 4 collectives``; empty if none does.
        slowest: the straggler, -1 when there is none.
        message: a sentence about the straggler, or empty.
        rates: samples (and tokens) per second.
        step_times: in seconds, of the whole step and of each rank without waiting for others.
    """

    rate: str
    step_time: str
    sent: str
    slowest: int
    message: str
    rates: list[CurveLine]
    step_times: list[CurveLine]


def curve_names(view: RunView) -> list[str]:
    """Return the names of the curves, the loss first."""
    drawn = [name for name, curve in view.curves.items() if len(curve)]
    return sorted(drawn, key=lambda name: name != "loss")


def curves(view: RunView) -> Curves:
    """Return the metrics without the rates."""
    names = [name for name in curve_names(view) if name not in RATES]
    shown = names[:CURVES]
    limit = min(POINTS, ALL_POINTS // max(1, len(shown)))
    lines = [curve_line(name, view.curves[name], limit) for name in shown]
    return Curves(lines, len(names) - len(shown), epoch_ends(view))


def epoch_ends(view: RunView) -> list[float]:
    """Return the steps at which epochs end, between the steps whose epochs are known."""
    positions = view.clock.epochs
    last = int(positions[-1][1]) if positions else 0
    if not 0 < last <= MAX_EPOCHS:
        return []
    steps, epochs = np.array([(0, 0.0), *positions]).T
    return [round(float(step), 2) for step in np.interp(np.arange(1, last + 1), epochs, steps)]


def curve_line(name: str, curve: Curve, limit: int = POINTS) -> CurveLine:
    """Return one curve with at most ``limit`` points."""
    return _line(name, *curve.arrays(), limit)


def curve_detail(view: RunView, request: CurveRequest) -> CurveLine | None:
    """Return a part of a metric in more detail, with a point beyond each end, or None."""
    curve = next((c for name, c in view.curves.items() if plain(name) == request.name), None)
    if curve is None or not len(curve):
        return None
    steps, values = curve.arrays()
    begin = max(0, int(np.searchsorted(steps, request.first)) - 1)
    end = int(np.searchsorted(steps, request.last, "right")) + 1
    if begin >= end:
        return None  # an empty interval
    return _line(request.name, steps[begin:end], values[begin:end], POINTS)


def _line(name: str, steps: np.ndarray, values: np.ndarray, limit: int) -> CurveLine:
    last = float(values[-1])
    kept, means = downsample(steps, values, limit), ""
    if len(kept[0]) < len(steps):
        means = encode_points(*bin_means(steps, values, limit // 3))
    return CurveLine(
        plain(name), number(last), math.isfinite(last), len(steps), encode_points(*kept), means
    )


def encode_points(steps: np.ndarray, values: np.ndarray) -> str:
    """Return points as base64 of little-endian float32 pairs."""
    with np.errstate(over="ignore"):
        pairs = np.column_stack([steps, values]).astype("<f4")
    return base64.b64encode(pairs.tobytes()).decode()


def decode_points(packed: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps and values that ``encode_points`` has packed, as float32."""
    pairs = np.frombuffer(base64.b64decode(packed), "<f4").reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _bins(count: int, parts: int) -> np.ndarray:
    """Return indices of ``count`` points in at most ``parts`` rows, repeating the last index."""
    width = math.ceil(count / max(1, parts))
    rows = math.ceil(count / width)
    return np.minimum(np.arange(rows * width), count - 1).reshape(rows, width)


def downsample(steps: np.ndarray, values: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return at most ``limit`` points that draw the same curve.

    Each bin of steps keeps its minimum, its maximum and its first non-finite value, so that
    neither a spike nor a gap is lost. The first and last points are kept.
    """
    count = len(steps)
    if count <= limit:
        return steps, values
    index = _bins(count, (limit - 2) // 3)
    block = values[index]
    finite = np.isfinite(block)
    lowest = np.where(finite, block, np.inf).argmin(axis=1)
    highest = np.where(finite, block, -np.inf).argmax(axis=1)
    gap = finite.argmin(axis=1)  # the first non-finite value of its bin
    rows = np.arange(len(index))
    kept = np.unique([0, count - 1, *index[rows, lowest], *index[rows, highest], *index[rows, gap]])
    return steps[kept], values[kept]


def bin_means(steps: np.ndarray, values: np.ndarray, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean step and the mean finite value of each of at most ``parts`` bins."""
    index = _bins(len(steps), parts)
    block = values[index]
    finite = np.isfinite(block)
    counts = finite.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        means = np.where(finite, block, 0.0).sum(axis=1) / counts
    some = counts > 0
    return steps[index].mean(axis=1)[some], means[some]


def throughput(run: Run) -> Throughput:
    """Return the throughput of ``run``, and the rank that is slower than the others."""
    view = run.view
    rates = [n for n in RATES if n in view.curves and len(view.curves[n])]
    newest = [f"{number(view.curves[name].last or 0.0)} {name}" for name in rates]
    slowest = straggler(run)
    rank = slowest.rank if slowest else -1
    return Throughput(
        rate=", ".join(newest),
        step_time=span(_newest_step_time(view)) if any(r.step_times for r in view.ranks) else "",
        sent=_newest_sent(view),
        slowest=rank,
        message=slowest.sentence if slowest else "",
        rates=[curve_line(name, view.curves[name]) for name in rates],
        step_times=_step_times(view, rank),
    )


def _newest_step_time(view: RunView) -> float:
    newest = [rank.step_times[-1] for rank in view.ranks if rank.step_times]
    return float(np.median([each.step_time for each in newest]))


def _newest_sent(view: RunView) -> str:
    """Return what the rank sends per step that sends most."""
    newest = (rank.step_times[-1] for rank in view.ranks if rank.step_times)
    most = max(((each.sent, each.collectives) for each in newest), default=(0.0, 0.0))
    return format_communication(*most)


def _step_times(view: RunView, slowest: int) -> list[CurveLine]:
    known = [rank for rank, seen in enumerate(view.ranks) if seen.step_times]
    if not known:
        return []
    drawn = known if len(known) <= RANK_LINES else [slowest] if slowest >= 0 else []
    limit = POINTS // (len(drawn) + 1)
    steps, step_times, *_ = np.array(view.ranks[known[0]].step_times).T
    lines = [_line("step", steps, step_times, limit)]
    for rank in drawn if len(view.ranks) > 1 else ():
        steps, _, own_times, *_ = np.array(view.ranks[rank].step_times).T
        lines.append(_line(f"rank {rank}", steps, own_times, limit))
    return lines


@dataclass(frozen=True)
class Straggler:
    """The rank that takes longest until its backward pass.

    Attributes:
        rank: which one.
        own, others: seconds from the start of a step to the backward pass.
        step: seconds of a step.
        awaited: whether the difference is the time that the others wait.
    """

    rank: int
    own: float
    others: float
    step: float
    awaited: bool

    @property
    def cost_text(self) -> str:
        """The cost, as far as it is known."""
        if not self.awaited:
            return "spends the most time outside backward passes"
        lost = 100 * (self.own - self.others) / self.step
        return f"the others wait for it {lost:.0f} % of the time"

    @property
    def warning(self) -> str:
        """The warning in the rank's row."""
        return f"slow: {self.cost_text}" if self.awaited else self.cost_text

    @property
    def sentence(self) -> str:
        """A full sentence."""
        own, others = span(self.own), span(self.others)
        if not self.awaited:
            return f"Rank {self.rank} {self.cost_text}: {own} of a step, the others {others}."
        return (
            f"Rank {self.rank} is the slowest: {self.cost_text}. Up to the backward pass it "
            f"takes {own}, the others {others}."
        )


def straggler(run: Run) -> Straggler | None:
    """Return the rank that takes much longer than the others until its backward pass, if any.

    Where ranks synchronize only in backward passes, their steps take equally long, and the others
    wait for this rank. Sharded models synchronize in forward passes as well, and a GPU runs
    asynchronously to its rank's Python code.
    """
    view, record = run.view, run.record
    times = [rank.step_times[-HEARTBEATS:] for rank in view.ranks]
    known = [each for each in times if len(each) >= MIN_HEARTBEATS]
    if len(known) < len(view.ranks) or len(known) < 2:
        return None
    own = np.array([statistics.median([pace.own_time for pace in each]) for each in known])
    worst = int(own.argmax())
    found = Straggler(
        rank=worst,
        own=float(own[worst]),
        others=float(np.median(np.delete(own, worst))),
        step=float(np.median([pace.step_time for pace in known[worst]])),
        awaited=record.options.strategy in SYNCHRONIZING_IN_BACKWARD
        and set(record.devices) == {"cpu"},
    )
    much = found.own > 1.3 * found.others and found.own - found.others > 0.1 * found.step
    return found if much else None
