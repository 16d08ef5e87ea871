"""Curves, progress and notices of one rank, written at most ten times a second.

With many ranks, less often, with more points at a time: kernel, server and launcher read the events
of all ranks.

A metric on a GPU stays a tensor until the buffered points are written.  Then all of them are copied
to the host, and written when the copy is done: training never waits for them.
"""

from __future__ import annotations

import reprlib
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from nbmgpu.errors import format_message
from nbmgpu.runs.event_file import EventWriter
from nbmgpu.runs.events import Metrics, Notice, Progress, Stderr
from nbmgpu.strategies.scalars import as_scalar

from .host_copy import HostCopy
from .places import line_of

if TYPE_CHECKING:
    from nbmgpu.rank.restart import RestartRequest

INTERVAL = 0.1
"""Seconds between writes, with few ranks."""

FEW_RANKS = 16
"""Ranks above which each rank writes less often."""

LONGEST_INTERVAL = 1.0
"""Maximum seconds between writes, which a killed rank loses; heartbeats are as far apart."""

MAX_PENDING = 4096
"""Maximum number of buffered points."""


class _Points(NamedTuple):
    """Points of the curve ``name``, whose values are on their way from a GPU."""

    name: str
    steps: list[int]
    values: HostCopy
    weights: list[float]


class Recorder:
    """Buffers metrics, progress and notices of a rank, and writes them as events.

    Attributes:
        restart: asked before each notice whether the cell is to start again; None if it never is.
        last_steps: the step of the newest point of each curve.
        drops_metrics: whether points are dropped, as the run that this one resumes has them.
    """

    def __init__(self, events: EventWriter, world_size: int = 1) -> None:
        """Write to ``events``, as one of ``world_size`` ranks."""
        self._interval = write_interval(world_size)
        self.drops_metrics = False
        self._ignored: frozenset[str] = frozenset()
        self._remedy: tuple[frozenset[str], str] = (frozenset(), "")
        self.restart: RestartRequest | None = None
        self.begin_run(events)

    def begin_run(self, events: EventWriter) -> None:
        """Write to ``events`` from now on, with nothing buffered and no notice shown yet."""
        self.events = events
        self.last_steps: dict[str, int] = {}
        self._points: dict[str, list[tuple[int, Any, float]]] = {}
        self._pending = 0
        self._copied: deque[_Points] = deque()
        self._progress: dict[str, dict[str, Any]] = {}
        self._topics: set[str] = set()
        self._flushed = time.monotonic()

    def metric(self, name: str, step: int, value: Any, weight: float = 1.0) -> None:
        """Add a point to a curve: ``value`` is a number or a tensor with one element."""
        if self.drops_metrics:
            return
        if isinstance(value, torch.Tensor):
            value = as_scalar(value)
        self.last_steps[name] = step
        self._points.setdefault(name, []).append((step, value, weight))
        self._pending += 1
        self.maybe_flush()

    def progress(self, key: str, **fields: Any) -> None:
        """Update the progress bar ``key``; fields as in ``events.Progress``."""
        self._progress[key] = fields
        self.maybe_flush()

    def notice(self, topic: str, text: str) -> None:
        """Show a text to the user, once per topic."""
        if topic not in self._topics and topic not in self._ignored:
            self._topics.add(topic)
            line = line_of(text)
            obstacle = self.restart.consider(topic, line) if self.restart is not None else ""
            if topic in self._remedy[0]:
                text = f"{text} {self._remedy[1]}"
                self._remedy = frozenset(), ""
                text = f"{text} {obstacle}".rstrip()
            self.events.emit(Notice, topic=topic, text=text)

    def ignore(self, topics: frozenset[str]) -> None:
        """Show no notices of these topics, which do not apply to this run."""
        self._ignored = topics

    def suggest(self, topics: frozenset[str], remedy: str) -> None:
        """Add a sentence to the first notice of one of these topics."""
        self._remedy = topics, remedy

    def has_notice(self, topic: str) -> bool:
        """Return whether a notice of ``topic`` was emitted."""
        return topic in self._topics

    def stderr(self, start: int, end: int) -> None:
        """Record that bytes ``start`` to ``end`` of the log were written to stderr."""
        self.events.emit(Stderr, start=start, end=end)

    def maybe_flush(self) -> None:
        """Write the buffered events if the buffer is full or the interval has passed."""
        if self._pending >= MAX_PENDING or time.monotonic() - self._flushed > self._interval:
            self._write(wait=False)

    def flush(self) -> None:
        """Write the buffered events; waits for numbers on a GPU."""
        self._write(wait=True)

    def _write(self, wait: bool) -> None:
        points, self._points, self._pending = self._points, {}, 0
        bars, self._progress = self._progress, {}
        self._flushed = time.monotonic()
        for name, rows in points.items():
            steps, values, weights = (list(column) for column in zip(*rows, strict=True))
            self._copied.append(_Points(name, steps, HostCopy(values), weights))
        while self._copied and (wait or self._copied[0].values.is_done()):
            name, steps, copy, weights = self._copied.popleft()
            self.events.emit(
                Metrics, name=name, steps=steps, values=copy.numbers(), weights=weights
            )
        for key, fields in bars.items():
            self.events.emit(Progress, key=key, **fields)


def write_interval(world_size: int) -> float:
    """Return the seconds between two writes of one of ``world_size`` ranks."""
    return min(LONGEST_INTERVAL, INTERVAL * max(1.0, world_size / FEW_RANKS))


def check_metrics(values: Mapping[str, Any]) -> dict[str, float | torch.Tensor]:
    """Return ``values`` as numbers and tensors with one element; no tensor is read.

    Raises:
        TypeError: a value is neither; names the first such value.
    """
    return {n: v if type(v) is float else _one_number(n, v) for n, v in values.items()}


def _one_number(name: str, value: Any) -> float | torch.Tensor:
    if isinstance(value, torch.Tensor):
        if value.numel() == 1:
            return value
        what, instead = f"a tensor of shape {tuple(value.shape)}", f"{name}={name}.mean()"
        raise _not_a_metric(name, what, f"nbmgpu.log({instead})")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise _not_a_metric(name, f"{type(value).__name__} {reprlib.repr(value)}") from None


def _not_a_metric(name: str, what: str, instead: str = "") -> TypeError:
    problem = f"nbmgpu.log({name}=...): a metric is one number, but this is {what}"
    return TypeError(format_message(problem, instead=instead))
