"""What a rank has used of the machine over time, in a bounded number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .events import Heartbeat

MAX_SAMPLES = 256
"""Samples that are kept; when there are as many, each two become one."""


class Usage(NamedTuple):
    """The use of one moment, or the mean of some; -1 where it is unknown.

    Attributes:
        time: in seconds since the epoch.
        cpu: in percent of one core.
        memory: of the process, in bytes.
        gpu: utilization, in percent.
        gpu_memory: in bytes.
        sent: bytes per second that the rank sent to others in training steps.
    """

    time: float
    cpu: float
    memory: float
    gpu: float
    gpu_memory: float
    sent: float

    @classmethod
    def of(cls, beat: Heartbeat) -> Usage:
        """Return what a heartbeat tells."""
        sent = sent_per_step(beat)[0] / beat.step_time if beat.step_time else 0.0
        return cls(beat.time, beat.cpu, beat.memory, beat.gpu, beat.gpu_memory, sent)

    @classmethod
    def mean(cls, group: Sequence[Usage]) -> Usage:
        """Return the mean of some moments, at the time of the last one."""
        known = ([value for value in column if value >= 0] for column in zip(*group, strict=True))
        _, *means = (sum(values) / len(values) if values else -1.0 for values in known)
        return cls(group[-1].time, *means)


def sent_per_step(beat: Heartbeat) -> tuple[float, float]:
    """Return the bytes and collectives of ``Heartbeat.sent``; 0 without a step."""
    return (beat.sent[0], beat.sent[1]) if len(beat.sent) == 2 else (0.0, 0.0)


@dataclass
class UsageHistory:
    """The samples of a rank, by time; each stands for as many heartbeats."""

    samples: list[Usage] = field(default_factory=list)
    _beats: int = 1  # of each sample
    _pending: list[Usage] = field(default_factory=list)

    def add(self, beat: Heartbeat) -> None:
        """Add the next heartbeat."""
        self._pending.append(Usage.of(beat))
        if len(self._pending) < self._beats:
            return
        self.samples.append(Usage.mean(self._pending))
        self._pending = []
        if len(self.samples) >= MAX_SAMPLES:
            pairs = zip(self.samples[::2], self.samples[1::2], strict=True)
            self.samples = [Usage.mean(pair) for pair in pairs]
            self._beats *= 2
