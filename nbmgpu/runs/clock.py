"""When a run took its steps, and in which epoch and after how many samples."""

from __future__ import annotations

from dataclasses import dataclass, field

from .events import Event, Heartbeat, Metrics, Progress

LOADER = "loader"
"""Key of the progress of the training loader."""

Positions = list[tuple[int, float]]
"""Pairs of a training step, which increases, and its position on some axis."""


@dataclass
class RunClock:
    """The progress of rank 0, which represents all ranks, as often as events tell.

    Attributes:
        times: when a step had been taken, in seconds since the epoch, in UTC.
        epochs: passes over the training loader up to a step, with fractions; empty if the cell
            makes a new loader for each pass, or trains on several.
        samples: on which all ranks had trained up to a step.
    """

    times: Positions = field(default_factory=list)
    epochs: Positions = field(default_factory=list)
    samples: Positions = field(default_factory=list)
    _counts_epochs: bool = True

    def add(self, event: Event) -> None:
        """Apply an event of rank 0."""
        match event:
            case Heartbeat():
                _append(self.times, event.step, event.time)
            case Metrics():
                _append(self.times, max(event.steps, default=0), event.time)
            case Progress(key=key) if key == LOADER and event.train_step:
                _append(self.samples, event.train_step, event.samples)
                if event.epoch and event.total and self._counts_epochs:
                    self._add_epochs(event.train_step, event.epoch - 1 + event.step / event.total)

    def _add_epochs(self, step: int, epochs: float) -> None:
        if self.epochs and epochs < self.epochs[-1][1]:  # counted by each loader on its own
            self._counts_epochs = False
            self.epochs.clear()
        else:
            _append(self.epochs, step, epochs)


def _append(positions: Positions, step: int, position: float) -> None:
    if step > (positions[-1][0] if positions else 0):
        positions.append((step, position))
