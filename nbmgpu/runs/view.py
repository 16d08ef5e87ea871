"""The state of a run, aggregated from its events, for panels, summaries and tests.

A ``RunView`` consumes events in time order. It knows neither files nor widgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .byte_ranges import ByteRanges
from .events import (
    LAUNCHER,
    Display,
    Ended,
    Event,
    Exited,
    Failure,
    Heartbeat,
    Measurements,
    Metrics,
    Notice,
    Progress,
    RankState,
    RunState,
    Started,
    Status,
    Stderr,
    StepDigest,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Curve:
    """One metric over steps, averaged over the ranks that reported the step.

    The average is weighted by the samples behind each value, so that a loss is that of one device,
    without a collective.
    """

    sums: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)

    def add(self, points: Metrics) -> None:
        """Add points of one rank."""
        for step, value, weight in zip(points.steps, points.values, points.weights, strict=True):
            if weight:  # an empty shard has no weight, and its value may be nan
                self.sums[step] = self.sums.get(step, 0.0) + weight * value
                self.weights[step] = self.weights.get(step, 0.0) + weight

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.sums)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps (int64) and values (float64) in step order."""
        # Both dictionaries have the same order of keys, nearly always that of steps.
        count = len(self.sums)
        steps = np.fromiter(self.sums, np.int64, count)
        with np.errstate(invalid="ignore", over="ignore"):
            values = np.fromiter(self.sums.values(), np.float64, count)
            values /= np.fromiter(self.weights.values(), np.float64, count)
        order = np.argsort(steps, kind="stable")
        return steps[order], values[order]

    def points(self) -> list[tuple[int, float]]:
        """Return ``(step, value)`` in step order."""
        steps, values = self.arrays()
        return list(zip(steps.tolist(), values.tolist(), strict=True))

    @property
    def last(self) -> float | None:
        """Return the newest value."""
        if not self.sums:
            return None
        step = max(self.sums)
        return self.sums[step] / self.weights[step]

    def series(self) -> pd.Series[float]:
        """Return the curve as a float64 series indexed by step."""
        import pandas as pd

        steps, values = self.arrays()
        return pd.Series(values, index=steps, dtype="float64")


RECENT = 20
"""Points of the moving average of a rank's own metric."""


@dataclass
class RecentMean:
    """A rank's newest value of a metric, and the mean of about the last ``RECENT`` values."""

    last: float
    mean: float
    count: int = 1

    def add(self, value: float) -> None:
        """Add the next value."""
        self.last = value
        self.count += 1
        self.mean += (value - self.mean) / min(self.count, RECENT)


@dataclass
class LogTimes:
    """When a log was written: at ``times[i]`` it had ``offsets[i]`` bytes."""

    offsets: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, offset: int, time: float) -> None:
        """Record that the log had ``offset`` bytes at ``time``."""
        if not self.offsets or offset > self.offsets[-1]:  # otherwise nothing was written
            self.offsets.append(offset)
            self.times.append(time)


class StepTime(NamedTuple):
    """The speed of a rank at a heartbeat.

    Attributes:
        step: the last step taken.
        step_time: seconds per step since the last heartbeat.
        own_time: the part of it outside backward passes, where ranks synchronize.
    """

    step: int
    step_time: float
    own_time: float


@dataclass
class RankView:
    """The state of one rank.

    ``step_times`` has an item for each heartbeat with a step.
    """

    process: Started | None = None
    state: RankState = "starting"
    detail: str = ""
    exited: Exited | None = None
    failure: Failure | None = None
    step: int = 0
    last_time: float = 0.0
    heartbeat: Heartbeat | None = None
    measured: Measurements | None = None
    step_digest: StepDigest | None = None
    step_times: list[StepTime] = field(default_factory=list)
    recent: dict[str, RecentMean] = field(default_factory=dict)
    stderr: ByteRanges = field(default_factory=ByteRanges)
    marks: LogTimes = field(default_factory=LogTimes)

    def add(self, event: Event) -> None:
        """Apply an event of this rank."""
        self.last_time = max(self.last_time, event.time)
        match event:
            case Started():
                self.process = event
            case Status():
                self.state, self.detail = event.state, event.detail
            case Failure():
                self.failure = event
            case Metrics():
                self._add_points(event)
            case Measurements():
                self.measured = event
            case StepDigest():
                self.step_digest = event
            case Heartbeat():
                self.heartbeat = event
                self.step = max(self.step, event.step)
                self.marks.add(event.logged, event.time)
                if event.step_time:
                    self.step_times.append(StepTime(event.step, event.step_time, event.own_time))
            case Stderr():
                self.stderr.add(event.start, event.end)
                self.marks.add(event.end, event.time)
            case Display():
                self.marks.add(event.offset, event.time)

    def _add_points(self, points: Metrics) -> None:
        self.step = max(self.step, max(points.steps, default=0))
        for value, weight in zip(points.values, points.weights, strict=True):
            if not weight:
                continue
            if (recent := self.recent.get(points.name)) is not None:
                recent.add(value)
            else:
                self.recent[points.name] = RecentMean(value, value)

    @property
    def exit_code(self) -> int | None:
        """The process's exit code, negative for a signal; None while it lives."""
        return self.exited.code if self.exited else None


@dataclass
class ProgressTrack:
    """The history of a progress bar: its first state, the start of its current pass, its newest."""

    first: Progress
    begun: Progress
    now: Progress

    @classmethod
    def of(cls, event: Progress) -> ProgressTrack:
        """Start with a bar's first state."""
        return cls(event, event, event)

    def add(self, event: Progress) -> None:
        """Apply the bar's next state."""
        if event.epoch != self.now.epoch or event.step < self.now.step:
            self.begun = event
        self.now = event


class RunView:
    """The state of a run.

    ``notices`` has each topic once. ``tracks`` maps a bar's key to its history on rank 0, which
    stands for all ranks.
    """

    def __init__(self, world_size: int) -> None:
        """Start with ``world_size`` ranks and no events."""
        self.ranks = [RankView() for _ in range(world_size)]
        self.launcher: Started | None = None
        self.curves: dict[str, Curve] = {}
        self.tracks: dict[str, ProgressTrack] = {}
        self.notices: dict[str, Notice] = {}
        self.ended: Ended | None = None
        self.first_time: float | None = None
        self.last_time: float = 0.0

    def add(self, event: Event) -> None:
        """Apply an event."""
        self.first_time = event.time if self.first_time is None else self.first_time
        self.last_time = max(self.last_time, event.time)
        match event:
            case Started() if event.rank == LAUNCHER:
                self.launcher = event
            case Exited():
                self.ranks[event.of_rank].exited = event
            case Metrics():
                self.curves.setdefault(event.name, Curve()).add(event)
            case Progress() if event.rank == 0:
                if track := self.tracks.get(event.key):
                    track.add(event)
                else:
                    self.tracks[event.key] = ProgressTrack.of(event)
            case Notice():
                self.notices.setdefault(event.topic, event)
            case Ended():
                self.ended = event
        if event.rank >= 0:
            self.ranks[event.rank].add(event)

    @property
    def progress(self) -> dict[str, Progress]:
        """Each bar's newest state, by its key."""
        return {key: track.now for key, track in self.tracks.items()}

    @property
    def trained_on_different_batches(self) -> bool:
        """Whether ranks trained on different batches of their loaders."""
        return len({rank.step_digest.batches for rank in self.ranks if rank.step_digest}) > 1

    @property
    def losses_reduce_differently(self) -> bool:
        """Whether losses of ranks reduced differently in some step."""
        digests = {rank.step_digest.losses for rank in self.ranks if rank.step_digest}
        return len(digests - {""}) > 1

    @property
    def weights_differ(self) -> bool:
        """Whether the ranks' replicated weights differ at the end."""
        digests = {rank.step_digest.weights for rank in self.ranks if rank.step_digest}
        return len(digests - {""}) > 1

    @property
    def differing_buffers(self) -> list[str]:
        """Names of buffers with different values on ranks at the end."""
        digests = [rank.step_digest.buffers for rank in self.ranks if rank.step_digest]
        first = digests[0] if digests else {}
        return [n for n in first if any(other.get(n, first[n]) != first[n] for other in digests)]

    @property
    def ending(self) -> str | None:
        """How the run ended, or None while it is active."""
        return self.ended.ending if self.ended else None

    @property
    def state(self) -> RunState:
        """The state of the run."""
        if self.ended:
            return self.ended.ending
        begun = any(rank.state not in ("starting", "loading") for rank in self.ranks)
        return "running" if begun else "starting"

    @property
    def failure(self) -> Failure | None:
        """The earliest failure by time, which is the cause of later ones.

        If rank 0 raised the same exception, rank 0's is returned.
        """
        failures = [rank.failure for rank in self.ranks if rank.failure]
        cause = min(failures, key=lambda f: f.time, default=None)
        own = self.ranks[0].failure
        same = cause and own and (cause.type, cause.message) == (own.type, own.message)
        return own if same else cause

    @property
    def killed(self) -> list[int]:
        """Ranks ended by a signal that the launcher did not send."""
        return [
            number
            for number, rank in enumerate(self.ranks)
            if rank.exited and rank.exited.code < 0 and not rank.exited.asked
        ]

    @property
    def exited_silently(self) -> int | None:
        """The rank that exited first without being asked and without an exception, if any.

        Later exceptions of other ranks, such as a lost connection, are consequences.
        """
        exits = [
            rank.exited
            for rank in self.ranks
            if rank.exited
            and not rank.exited.asked
            and (rank.exited.code or rank.state != "finished")
        ]
        first = min(exits, key=lambda e: e.time).of_rank if exits else None
        return None if first is None or self.ranks[first].failure else first

    @property
    def failed_rank(self) -> int | None:
        """The rank that caused the failure: it exited without an exception, or raised first.

        None while nothing has failed, and for a run that was stopped.
        """
        if self.ending in (None, "failed") and self.exited_silently is not None:
            return self.exited_silently
        if self.failure:
            return self.failure.rank
        if self.ending not in (None, "failed"):
            return None
        exits = [rank.exited for rank in self.ranks if rank.exited and rank.exited.code]
        return min(exits, key=lambda e: e.time).of_rank if exits else None
