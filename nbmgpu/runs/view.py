"""What a run looks like: the sum of its events, for panels, summaries and tests.

A ``RunView`` is fed events in time order and can be asked at any moment.  It
knows neither files nor widgets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .byte_ranges import Spans
from .events import (
    LAUNCHER,
    Display,
    Ended,
    Event,
    Exited,
    Failure,
    Measured,
    Metrics,
    Notice,
    Progress,
    RankState,
    RunState,
    Started,
    Status,
    Stderr,
    Vitals,
    Walked,
)

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class Curve:
    """One metric over steps, averaged over the ranks that reported the step.

    The average is weighted by the samples behind each rank's value, so that a
    loss is the one a single device would have shown.  No collective is needed.
    """

    sums: dict[int, float] = field(default_factory=dict)
    weights: dict[int, float] = field(default_factory=dict)

    def add(self, points: Metrics) -> None:
        """Take in points of one rank."""
        for step, value, weight in zip(points.steps, points.values, points.weights, strict=True):
            if weight:  # an empty share counts nothing, and its value may be nan
                self.sums[step] = self.sums.get(step, 0.0) + weight * value
                self.weights[step] = self.weights.get(step, 0.0) + weight

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.sums)

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps (int64) and values (float64) in step order."""
        # Both dictionaries got their keys in the same order, which is nearly always step order.
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
"""Points over which a rank's own value of a metric is averaged."""


@dataclass
class Recent:
    """A rank's own values of one metric: the newest, and the mean of about the last ``RECENT``."""

    last: float
    mean: float
    count: int = 1

    def add(self, value: float) -> None:
        """Take in the next value."""
        self.last = value
        self.count += 1
        self.mean += (value - self.mean) / min(self.count, RECENT)


@dataclass
class LogMarks:
    """What is known of when a log was written: before ``times[i]`` it had ``offsets[i]`` bytes."""

    offsets: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, offset: int, time: float) -> None:
        """Note that ``offset`` bytes were there at ``time``."""
        if not self.offsets or offset > self.offsets[-1]:  # else nothing was written since
            self.offsets.append(offset)
            self.times.append(time)


class StepPace(NamedTuple):
    """How fast a rank was at a beat.

    Attributes:
        step: the last one it has taken.
        step_time: seconds per step since the beat before.
        own_time: those of them that it was not in a backward pass, where it meets the others.
    """

    step: int
    step_time: float
    own_time: float


@dataclass
class RankView:
    """One rank: its process, state and health and, if it failed, why.

    ``paces`` has one of each beat in which it took a step.
    """

    process: Started | None = None
    state: RankState = "starting"
    detail: str = ""
    exited: Exited | None = None
    failure: Failure | None = None
    step: int = 0
    last_time: float = 0.0
    vitals: Vitals | None = None
    measured: Measured | None = None
    walked: Walked | None = None
    paces: list[StepPace] = field(default_factory=list)
    recent: dict[str, Recent] = field(default_factory=dict)
    stderr: Spans = field(default_factory=Spans)
    marks: LogMarks = field(default_factory=LogMarks)

    def add(self, event: Event) -> None:
        """Take in one event of this rank."""
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
            case Measured():
                self.measured = event
            case Walked():
                self.walked = event
            case Vitals():
                self.vitals = event
                self.step = max(self.step, event.step)
                self.marks.add(event.logged, event.time)
                if event.step_time:
                    self.paces.append(StepPace(event.step, event.step_time, event.own_time))
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
                self.recent[points.name] = Recent(value, value)

    @property
    def exit_code(self) -> int | None:
        """The process's exit code, negative for a signal; None while it lives."""
        return self.exited.code if self.exited else None


@dataclass
class Track:
    """A progress bar as it moved: its first state, where it began anew, and its newest."""

    first: Progress
    begun: Progress
    now: Progress

    @classmethod
    def of(cls, event: Progress) -> Track:
        """Begin with a bar's first state."""
        return cls(event, event, event)

    def add(self, event: Progress) -> None:
        """Take in the bar's next state."""
        if event.epoch != self.now.epoch or event.step < self.now.step:
            self.begun = event
        self.now = event


class RunView:
    """Everything known of a run.

    ``notices`` holds each topic once.  ``tracks`` maps a bar's key to how it moved on
    rank 0: ranks walk in step, so one bar stands for all of them.
    """

    def __init__(self, world_size: int) -> None:
        """Start with nothing known about ``world_size`` ranks."""
        self.ranks = [RankView() for _ in range(world_size)]
        self.launcher: Started | None = None
        self.curves: dict[str, Curve] = {}
        self.tracks: dict[str, Track] = {}
        self.notices: dict[str, Notice] = {}
        self.ended: Ended | None = None
        self.first_time: float | None = None
        self.last_time: float = 0.0

    def add(self, event: Event) -> None:
        """Take in one event."""
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
                    self.tracks[event.key] = Track.of(event)
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
    def walked_apart(self) -> bool:
        """Whether ranks have trained on different batches of their loaders."""
        return len({rank.walked.batches for rank in self.ranks if rank.walked}) > 1

    @property
    def chose_apart(self) -> bool:
        """Whether the losses of ranks reduce in different ways in some step."""
        told = {rank.walked.losses for rank in self.ranks if rank.walked}
        return len(told - {""}) > 1

    @property
    def came_apart(self) -> bool:
        """Whether ranks' copies of the weights differ in the end."""
        told = {rank.walked.weights for rank in self.ranks if rank.walked}
        return len(told - {""}) > 1

    @property
    def parted_buffers(self) -> list[str]:
        """Names of buffers of which ranks hold different values in the end."""
        told = [rank.walked.buffers for rank in self.ranks if rank.walked]
        first = told[0] if told else {}
        return [n for n in first if any(other.get(n, first[n]) != first[n] for other in told)]

    @property
    def ending(self) -> str | None:
        """How the run ended, or None while it goes on."""
        return self.ended.ending if self.ended else None

    @property
    def state(self) -> RunState:
        """The run's state in one word."""
        if self.ended:
            return self.ended.ending
        begun = any(rank.state not in ("starting", "loading") for rank in self.ranks)
        return "running" if begun else "starting"

    @property
    def failure(self) -> Failure | None:
        """The cause: the earliest failure by time, whatever failed afterwards because of it.

        When rank 0 raised the same exception itself, it is rank 0's that counts.
        """
        failures = [rank.failure for rank in self.ranks if rank.failure]
        cause = min(failures, key=lambda f: f.time, default=None)
        own = self.ranks[0].failure
        same = cause and own and (cause.type, cause.message) == (own.type, own.message)
        return own if same else cause

    @property
    def killed(self) -> list[int]:
        """Ranks that a signal ended which the launcher had not sent."""
        return [
            number
            for number, rank in enumerate(self.ranks)
            if rank.exited and rank.exited.code < 0 and not rank.exited.asked
        ]

    @property
    def silent(self) -> int | None:
        """The rank that left first of its own, if it left no exception.

        What other ranks raised then, such as a connection that broke, came of it.
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
    def culprit(self) -> int | None:
        """The rank that the run failed by: one that left without a word, or the first to raise.

        None while nothing failed, and for a run that was stopped.
        """
        if self.ending in (None, "failed") and self.silent is not None:
            return self.silent
        if self.failure:
            return self.failure.rank
        if self.ending not in (None, "failed"):
            return None
        exits = [rank.exited for rank in self.ranks if rank.exited and rank.exited.code]
        return min(exits, key=lambda e: e.time).of_rank if exits else None
