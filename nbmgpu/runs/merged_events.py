"""Fewer events for those who read a run from its start, beside the file of all events.

A rank writes tens of events per second, so that a panel is up to date.  Of what is long past, few
tell the same: the points of a curve in one event, and some heartbeats.  A rank appends these to a
second file (``events/rank-0.merged``), part by part, as its first file grows::

    {"kind":"metrics","name":"loss","steps":[1,2,3,...],...}
    {"kind":"heartbeat",...}
    {"merged":65536}

The last line tells how much of the first file these events stand for.  What follows there is read
from the first file, as it is by readers that have followed the run.
"""

from __future__ import annotations

import dataclasses
import re
import threading
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

from .event_lines import decode_lines, encode
from .events import Event, Heartbeat, Metrics, Progress, Stderr

PART = 1 << 16
"""Bytes of events that are merged at a time."""

KEPT = 4
"""Heartbeats, and states of a progress bar, that are left of a part."""

MARK, MARKED = '{{"merged":{}}}', re.compile(rb'^{"merged":(\d+)}\n', re.MULTILINE)

E = TypeVar("E", bound=Event)


def merged_path(path: Path) -> Path:
    """Return the path of the merged events of the file ``path``."""
    return path.with_suffix(".merged")


def merge(events: Iterable[Event]) -> list[Event]:
    """Return fewer events of one process that lead to the same view, with fewer moments in it.

    All points of curves are kept, and all rare events.
    """
    curves: defaultdict[str, list[Metrics]] = defaultdict(list)
    bars: defaultdict[str, list[Progress]] = defaultdict(list)
    beats: list[Heartbeat] = []
    written: list[Stderr] = []
    found: list[Event] = []
    for event in events:
        match event:
            case Metrics():
                curves[event.name].append(event)
            case Progress():
                bars[event.key].append(event)
            case Heartbeat():
                beats.append(event)
            case Stderr() if written and written[-1].end == event.start:
                written[-1] = dataclasses.replace(event, start=written[-1].start)
            case Stderr():
                written.append(event)
            case _:
                found.append(event)
    last = max((points[-1].time for points in curves.values()), default=0.0)
    found += [_joined(points, last) for points in curves.values()]  # views keep their order
    found += [*_some(beats), *written]
    found += chain.from_iterable(map(_turns, bars.values()))
    return sorted(found, key=attrgetter("time"))


def _joined(points: list[Metrics], time: float) -> Metrics:
    """Return the points of a curve as one event of some ``time``."""
    return Metrics(
        time,
        points[-1].rank,
        points[-1].name,
        [step for each in points for step in each.steps],
        [value for each in points for value in each.values],
        [weight for each in points for weight in each.weights],
    )


def _some(events: list[E]) -> list[E]:
    """Return the first event, the last, and some others at about equal distances."""
    distance = -(-len(events) // KEPT)
    some = events[:: -distance or None][::-1]
    return some if some[:1] == events[:1] else [events[0], *some]


def _turns(states: list[Progress]) -> list[Progress]:
    """Return some states of a bar, and those where it begins anew."""
    turns = [states[0]]
    for before, after in pairwise(states):
        if after.epoch != before.epoch or after.step < before.step:
            turns += [before, after]
    kept = {id(each) for each in [*_some(turns), *_some(states)]}
    return [state for state in states if id(state) in kept]


class EventMerger:
    """Merges the events of one file as they are written, by any thread."""

    def __init__(self, path: Path) -> None:
        """Merge those of the file ``path``, which is empty."""
        self._path = path
        self._lock = threading.RLock()  # a signal handler may write, too
        self._events: list[Event] = []
        self._begin = self._end = 0

    def add(self, event: Event, nbytes: int) -> None:
        """Add an event that has been written, as a line of ``nbytes``.

        Raises:
            OSError: the disk is full; no more may be added.
        """
        with self._lock:
            self._events.append(event)
            self._end += nbytes
            if self._end - self._begin >= PART:
                self.merge_rest()

    def merge_rest(self) -> None:
        """Merge what was added since the last part.

        Raises:
            OSError: the disk is full.
        """
        with self._lock:
            # What another thread has written, and not added yet, may come before.
            if self._end == self._begin or self._path.stat().st_size != self._end:
                return
            events, self._events, self._begin = self._events, [], self._end
            lines = [*map(encode, merge(events)), MARK.format(self._end)]
            with merged_path(self._path).open("ab") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())


def read_merged(path: Path) -> tuple[list[Event], int]:
    """Return the merged events of the file ``path``, and how many bytes of it they stand for."""
    try:
        size, data = path.stat().st_size, merged_path(path).read_bytes()
    except FileNotFoundError:
        return [], 0
    marks = [*MARKED.finditer(data)]
    offset = int(marks[-1][1]) if marks else 0
    if not 0 < offset <= size:
        return [], 0
    lines = data[: marks[-1].start()].splitlines()
    return decode_lines(lines), offset
