"""Curves with few enough points to travel: metrics, throughput, the time of a step."""

from __future__ import annotations

import base64
import math
from dataclasses import dataclass

import numpy as np

from nbmgpu.runs.run import Run
from nbmgpu.runs.view import Curve, RunView

from .text_format import number, plain, span

POINTS = 1000
"""The most points of a curve that travel."""

ALL_POINTS = 8000
"""The most points of all metrics together."""

CURVES = 24
"""The most curves shown; the rest is in ``Run.metrics``."""

RATES = ("samples/s", "tokens/s")
"""Metrics that tell how fast a run is; they stand with the throughput."""

RANK_LINES = 8
"""The most ranks whose step times are drawn; of more, only the slowest is."""

MEETING_BACKWARD = ("ddp", "zero1")
"""Strategies whose ranks meet in backward passes alone."""

BEATS, FEWEST = 5, 3
"""Beats over which ranks are compared, and the fewest: one may have had an evaluation in it."""


@dataclass(frozen=True)
class CurveLine:
    """One metric, drawn.

    ``points`` is base64 of little-endian float32 pairs of step and value, at most
    ``POINTS``: of each stretch of steps the lowest and the highest.  ``means`` has the mean of
    each stretch, for smoothing; it is empty where ``points`` has every step.
    """

    name: str
    last: str
    sound: bool
    steps: int
    points: str
    means: str = ""


@dataclass(frozen=True)
class CurveRequest:
    """Asks for the steps from ``first`` to ``last`` of one metric, as if they were all."""

    name: str
    first: float
    last: float


@dataclass(frozen=True)
class Curves:
    """The metrics: the loss first, the others as they came; ``hidden`` counts those left out."""

    shown: list[CurveLine]
    hidden: int


@dataclass(frozen=True)
class Throughput:
    """How fast a run is.

    ``rates`` are samples (and tokens) per second.  ``step_times`` has, in seconds, the whole
    step and each rank's own part of it, which is what it does without waiting for others.
    ``slowest`` is the straggler, -1 when there is none, and ``words`` says what is known of it.
    """

    rate: str
    step_time: str
    slowest: int
    words: str
    rates: list[CurveLine]
    step_times: list[CurveLine]


def curve_names(view: RunView) -> list[str]:
    """Return the curves' names: the loss first, the others as they came."""
    drawn = [name for name, curve in view.curves.items() if len(curve)]
    return sorted(drawn, key=lambda name: name != "loss")


def curves(view: RunView) -> Curves:
    """Return the metrics, but for the rates."""
    names = [name for name in curve_names(view) if name not in RATES]
    shown = names[:CURVES]
    limit = min(POINTS, ALL_POINTS // max(1, len(shown)))
    return Curves([curve_line(n, view.curves[n], limit) for n in shown], len(names) - len(shown))


def curve_line(name: str, curve: Curve, limit: int = POINTS) -> CurveLine:
    """Return one curve with at most ``limit`` points."""
    return _line(name, *curve.arrays(), limit)


def stretch(view: RunView, request: CurveRequest) -> CurveLine | None:
    """Return a part of a metric in more detail, with a point beyond each end; None without any."""
    curve = next((c for name, c in view.curves.items() if plain(name) == request.name), None)
    if curve is None or not len(curve):
        return None
    steps, values = curve.arrays()
    begin = max(0, int(np.searchsorted(steps, request.first)) - 1)
    end = int(np.searchsorted(steps, request.last, "right")) + 1
    if begin >= end:
        return None  # it ends before it begins
    return _line(request.name, steps[begin:end], values[begin:end], POINTS)


def _line(name: str, steps: np.ndarray, values: np.ndarray, limit: int) -> CurveLine:
    last = float(values[-1])
    kept, means = thin(steps, values, limit), ""
    if len(kept[0]) < len(steps):
        means = packed(*averaged(steps, values, limit // 3))
    return CurveLine(
        plain(name), number(last), math.isfinite(last), len(steps), packed(*kept), means
    )


def packed(steps: np.ndarray, values: np.ndarray) -> str:
    """Return points as base64 of little-endian float32 pairs."""
    with np.errstate(over="ignore"):
        pairs = np.column_stack([steps, values]).astype("<f4")
    return base64.b64encode(pairs.tobytes()).decode()


def _stretches(count: int, parts: int) -> np.ndarray:
    """Return the indices of ``count`` points in at most ``parts`` rows; the last is repeated."""
    width = math.ceil(count / max(1, parts))
    rows = math.ceil(count / width)
    return np.minimum(np.arange(rows * width), count - 1).reshape(rows, width)


def thin(steps: np.ndarray, values: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of at most ``limit`` points that draw the same picture.

    Of each stretch of steps the lowest and the highest value stay, and one that
    is not a number, so that neither a spike nor a gap is lost; so do the two ends.
    """
    count = len(steps)
    if count <= limit:
        return steps, values
    index = _stretches(count, (limit - 2) // 3)
    block = values[index]
    finite = np.isfinite(block)
    lowest = np.where(finite, block, np.inf).argmin(axis=1)
    highest = np.where(finite, block, -np.inf).argmax(axis=1)
    gap = finite.argmin(axis=1)  # the first in its stretch that is no number
    rows = np.arange(len(index))
    kept = np.unique([0, count - 1, *index[rows, lowest], *index[rows, highest], *index[rows, gap]])
    return steps[kept], values[kept]


def averaged(steps: np.ndarray, values: np.ndarray, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean step and the mean finite value of each of at most ``parts`` stretches."""
    index = _stretches(len(steps), parts)
    block = values[index]
    finite = np.isfinite(block)
    counts = finite.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        means = np.where(finite, block, 0.0).sum(axis=1) / counts
    some = counts > 0
    return steps[index].mean(axis=1)[some], means[some]


def throughput(run: Run) -> Throughput:
    """Return how fast ``run`` is, and which rank is slower than the others."""
    view = run.view
    rates = [n for n in RATES if n in view.curves and len(view.curves[n])]
    newest = [f"{number(view.curves[name].last or 0.0)} {name}" for name in rates]
    slowest = straggler(run)
    rank = slowest.rank if slowest else -1
    return Throughput(
        rate=", ".join(newest),
        step_time=span(_newest_step_time(view)) if any(r.paces for r in view.ranks) else "",
        slowest=rank,
        words=slowest.sentence if slowest else "",
        rates=[curve_line(name, view.curves[name]) for name in rates],
        step_times=_step_times(view, rank),
    )


def _newest_step_time(view: RunView) -> float:
    return float(np.median([rank.paces[-1].step_time for rank in view.ranks if rank.paces]))


def _step_times(view: RunView, slowest: int) -> list[CurveLine]:
    paces = {n: np.array(rank.paces).T for n, rank in enumerate(view.ranks) if rank.paces}
    if not paces:
        return []
    drawn = list(paces) if len(paces) <= RANK_LINES else [slowest] if slowest >= 0 else []
    limit = POINTS // (len(drawn) + 1)
    steps, step_times, _ = next(iter(paces.values()))
    lines = [_line("step", steps, step_times, limit)]
    for rank in drawn if len(view.ranks) > 1 else ():
        steps, _, own_times = paces[rank]
        lines.append(_line(f"rank {rank}", steps, own_times, limit))
    return lines


@dataclass(frozen=True)
class Straggler:
    """The rank that needs the longest until its backward pass.

    ``own`` and ``others`` are seconds from step to backward pass, ``step`` those of a step.
    ``awaited`` tells that the difference is what the others wait.
    """

    rank: int
    own: float
    others: float
    step: float
    awaited: bool

    @property
    def words(self) -> str:
        """What that costs, as far as it is known."""
        if not self.awaited:
            return "spends the most time outside backward passes"
        lost = 100 * (self.own - self.others) / self.step
        return f"the others wait for it {lost:.0f} % of the time"

    @property
    def warning(self) -> str:
        """The same, beside the rank's name."""
        return f"slow: {self.words}" if self.awaited else self.words

    @property
    def sentence(self) -> str:
        """The whole story."""
        own, others = span(self.own), span(self.others)
        if not self.awaited:
            return f"Rank {self.rank} {self.words}: {own} of a step, the others {others}."
        return (
            f"Rank {self.rank} is the slowest: {self.words}. Until ranks meet in the backward "
            f"pass, it needs {own} and they {others}."
        )


def straggler(run: Run) -> Straggler | None:
    """Return the rank that needs much longer than the others until its backward pass, if any.

    Where ranks meet in every backward pass and nowhere else, their steps take equally long,
    and this is the one that the others wait for.  Sharded models meet in forward passes, too;
    and a GPU is at work while its rank's Python code is further on already.
    """
    view, record = run.view, run.record
    known = [rank.paces[-BEATS:] for rank in view.ranks if len(rank.paces) >= FEWEST]
    if len(known) < len(view.ranks) or len(known) < 2:
        return None
    own = np.array([np.median([pace.own_time for pace in paces]) for paces in known])
    worst = int(own.argmax())
    found = Straggler(
        rank=worst,
        own=float(own[worst]),
        others=float(np.median(np.delete(own, worst))),
        step=float(np.median([pace.step_time for pace in known[worst]])),
        awaited=record.strategy in MEETING_BACKWARD and set(record.devices) == {"cpu"},
    )
    much = found.own > 1.3 * found.others and found.own - found.others > 0.1 * found.step
    return found if much else None
