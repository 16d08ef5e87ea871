"""The state of one rank, aggregated from its events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .byte_ranges import ByteRanges
from .events import (
    Display,
    Event,
    Exited,
    Failure,
    Heartbeat,
    Measurements,
    Metrics,
    RankState,
    Started,
    Status,
    Stderr,
    StepDigest,
)
from .usage import UsageHistory, sent_per_step

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
        self.mean += (value - self.mean) / (self.count if self.count < RECENT else RECENT)


@dataclass
class LogHistory:
    """How a log was written: at ``times[i]`` it had ``offsets[i]`` bytes; ``stderr`` are some."""

    offsets: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    stderr: ByteRanges = field(default_factory=ByteRanges)

    def add(self, offset: int, time: float) -> None:
        """Record that the log had ``offset`` bytes at ``time``."""
        if not self.offsets or offset > self.offsets[-1]:  # otherwise nothing was written
            self.offsets.append(offset)
            self.times.append(time)


class StepTime(NamedTuple):
    """The speed and the memory of a rank at a heartbeat.

    Attributes:
        step: the last step taken.
        step_time: seconds per step since the last heartbeat.
        own_time: the part of it outside backward passes, where ranks synchronize.
        sent, collectives: bytes that the rank sent per step, and its collectives.
        memory, gpu_memory: of the process, in bytes; -1 when unknown.
    """

    step: int
    step_time: float
    own_time: float
    sent: float = 0.0
    collectives: float = 0.0
    memory: int = -1
    gpu_memory: int = -1

    @classmethod
    def of(cls, beat: Heartbeat) -> StepTime:
        """Return what a heartbeat tells."""
        pace = beat.step, beat.step_time, beat.own_time, *sent_per_step(beat)
        return cls(*pace, beat.memory, beat.gpu_memory)


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
    usage: UsageHistory = field(default_factory=UsageHistory)
    recent: dict[str, RecentMean] = field(default_factory=dict)
    log: LogHistory = field(default_factory=LogHistory)

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
                self.usage.add(event)
                self.step = max(self.step, event.step)
                self.log.add(event.logged, event.time)
                if event.step_time:
                    self.step_times.append(StepTime.of(event))
            case Stderr():
                self.log.stderr.add(event.start, event.end)
                self.log.add(event.end, event.time)
            case Display():
                self.log.add(event.offset, event.time)

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
    def host(self) -> str:
        """The name of its machine, in a run on several ones."""
        return self.process.host if self.process else ""

    @property
    def exit_code(self) -> int | None:
        """The process's exit code, negative for a signal; None while it lives."""
        return self.exited.code if self.exited else None

    @property
    def never_started(self) -> bool:
        """Whether it counts as killed because its node has not started it."""
        return self.process is None and self.exited is not None and self.exited.code < 0
