"""When a rank last made progress, from the events that it appends to its file."""

from __future__ import annotations

import statistics
from collections import deque
from pathlib import Path

from nbmgpu.runs.event_file import EventTail
from nbmgpu.runs.events import Event, Heartbeat, RankState, Started, Status

RECENT_STEPS = 200
"""Heartbeats with a step time from which the median step is taken."""

BUSY = 50.0
"""Percent of a core from which a rank counts as computing."""

SILENT = 4.0
"""Seconds without a heartbeat after which a rank counts as silent."""


class RankProgress:
    """The progress of one rank.

    Progress is a step, a backward pass, output, a metric, a progress bar, a new state.

    Attributes:
        process: pid and creation time, once known.
        state: the rank's state.
        heartbeat: its newest one.
        beat_time, progress_time: when the newest heartbeat and the newest progress were read, on
            the monotonic clock of this process.
    """

    def __init__(self, events: Path, now: float) -> None:
        """Follow the rank's file ``events``."""
        self._tail = EventTail(events)
        self._step_times: deque[float] = deque(maxlen=RECENT_STEPS)
        self.process: Started | None = None
        self.state: RankState = "starting"
        self.heartbeat: Heartbeat | None = None
        self.beat_time = self.progress_time = now

    def update(self, now: float) -> None:
        """Read new events at time ``now``."""
        for event in self._tail.read():
            self._add(event, now)

    def _add(self, event: Event, now: float) -> None:
        if isinstance(event, Heartbeat):
            seen = self.heartbeat
            if seen is None or _position(event) != _position(seen):
                self.progress_time = now
            if event.step_time:
                self._step_times.append(event.step_time)
            self.heartbeat, self.beat_time = event, now
            return
        self.progress_time = now
        if isinstance(event, Started):
            self.process = event
        elif isinstance(event, Status):
            self.state = event.state

    @property
    def median_step(self) -> float:
        """Median seconds per step, 0 before the first one."""
        return statistics.median(self._step_times) if self._step_times else 0.0

    def is_silent(self, now: float) -> bool:
        """Return whether it sends no heartbeats, as where compiled code keeps the GIL."""
        return now - self.beat_time > SILENT

    def is_computing(self, now: float) -> bool:
        """Return whether it uses the processor and still runs Python code of other threads."""
        busy = self.heartbeat is not None and self.heartbeat.cpu >= BUSY
        return busy and not self.is_silent(now)


def _position(beat: Heartbeat) -> tuple[int, int, int]:
    return beat.step, beat.passes, beat.logged
