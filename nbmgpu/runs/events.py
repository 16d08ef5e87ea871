"""What ranks and launchers say: typed events, one JSON object a line.

Each process appends to a file of its own (``events/rank-0.jsonl``,
``events/launcher.jsonl``); readers tail them.  Nobody shares memory or a
socket.  A reader tolerates a half-written last line: it waits for the rest.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from .preallocation import Reserve

RankState = Literal["starting", "loading", "running", "collecting", "finished", "failed", "stopped"]
"""A rank's life: started, reads the bundle, runs the cell, writes the result, and how it ended."""

RunEnding = Literal["finished", "failed", "stopped", "timeout"]

RunState = Literal["starting", "running", "finished", "failed", "stopped", "timeout", "lost"]
"""A run's life.  Lost: the launcher is gone without having said how the run ended."""

GOING: frozenset[RunState] = frozenset({"starting", "running"})
"""States of a run that is not over."""

LAUNCHER = KERNEL = -1
"""The ``rank`` of an event that the launcher or the kernel wrote."""


@dataclass(frozen=True)
class Event:
    """Common to all events: ``time`` in seconds since the epoch, ``rank`` of the writer."""

    kind: ClassVar[str]
    time: float
    rank: int


@dataclass(frozen=True)
class Started(Event):
    """A process of the run exists.  ``create_time`` guards against a reused pid."""

    kind: ClassVar[str] = "started"
    pid: int
    create_time: float
    device: str = ""


@dataclass(frozen=True)
class Status(Event):
    """A rank entered a state; ``detail`` is one short sentence for people."""

    kind: ClassVar[str] = "status"
    state: RankState
    detail: str = ""


@dataclass(frozen=True)
class Metrics(Event):
    """New points of one curve, in step order.

    ``weights`` holds what each value counts for when ranks are averaged: the
    number of samples behind it.  A rank with an empty share has weight 0.
    """

    kind: ClassVar[str] = "metrics"
    name: str
    steps: list[int]
    values: list[float]
    weights: list[float]


@dataclass(frozen=True)
class Progress(Event):
    """How far a loop is: ``step`` of ``total`` (0 when unknown), shown as ``label``.

    ``key`` names the bar: the training loader's is ``"loader"``, a tqdm bar's its own.
    ``epoch`` counts passes over the loader from 1, or is 0 where that has no meaning.
    """

    kind: ClassVar[str] = "progress"
    key: str
    label: str
    step: int
    total: int
    epoch: int = 0
    done: bool = False


@dataclass(frozen=True)
class Display(Event):
    """A rich output of the cell, to be shown where ``offset`` bytes of log lie before it.

    ``action`` is ``show``, ``update`` (of ``display_id``) or ``clear`` (the output area).
    """

    kind: ClassVar[str] = "display"
    offset: int
    action: Literal["show", "update", "clear"] = "show"
    data: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str = ""


@dataclass(frozen=True)
class Stderr(Event):
    """Bytes ``start`` to ``end`` of this rank's log were written to stderr."""

    kind: ClassVar[str] = "stderr"
    start: int
    end: int


@dataclass(frozen=True)
class Vitals(Event):
    """How a rank is, about once a second: the rank beats, whatever its cell does meanwhile.

    ``step`` is the last one it has taken.  ``step_time`` are the seconds per step since the
    event before, and ``own_time`` those of them that it was not in a backward pass, where
    ranks wait for one another; both are 0 when it took no step.  ``cpu`` is in percent of
    one core.  Memory is in bytes; ``gpu`` is in percent.  What cannot be known is -1.
    ``logged`` is the size of its log at this moment, ``passes`` how many backward passes it has
    begun.
    """

    kind: ClassVar[str] = "vitals"
    step: int
    step_time: float
    own_time: float
    cpu: float
    cores: int
    memory: int
    memory_total: int
    gpu: float = -1
    gpu_memory: int = -1
    gpu_memory_total: int = -1
    gpu_allocated: int = -1
    logged: int = 0
    passes: int = 0


@dataclass(frozen=True)
class Measured(Event):
    """What a cell that was given a number of ``--steps`` has taken and needed on this rank.

    ``seconds`` and ``samples`` (of all ranks, 0 when unknown) are of each step but the first.
    In bytes: ``held`` is what its tensors take between steps, ``memory`` the most that the
    process had beyond what it had before the cell's data came, ``gpu_memory`` the most that torch
    had on its GPU, -1 without one; see ``nbmgpu.rank.metrics.memory``.
    """

    kind: ClassVar[str] = "measured"
    steps: int
    seconds: list[float]
    samples: list[int]
    held: int
    memory: int
    gpu_memory: int = -1


@dataclass(frozen=True)
class Walked(Event):
    """A rank has run its cell to the end, with so many backward ``passes``.

    ``batches`` is a digest of the numbers of the batches that they were on: ranks that have
    walked in step have the same.  ``losses`` is one of how their losses reduce over samples,
    or empty where that is not known.  ``weights`` is one of the weights of which every rank has
    a whole copy, or empty if there are none: while ranks train one model, copies are equal.
    ``buffers`` has one of each buffer that a module's state has, by its module's class and name.
    """

    kind: ClassVar[str] = "walked"
    passes: int
    batches: str
    losses: str = ""
    weights: str = ""
    buffers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Notice(Event):
    """Something the user must know, above all where numbers differ from one device.

    ``topic`` is a stable identifier (``random-step``, ``batch-norm``, ...): a reader shows
    each topic once, whatever the number of ranks that said it.
    """

    kind: ClassVar[str] = "notice"
    topic: str
    text: str


@dataclass(frozen=True)
class Failure(Event):
    """An exception ended the cell on this rank.

    ``line`` is the cell's own line (1-based, 0 when unknown); ``traceback`` is ANSI
    coloured; ``pickled`` is the exception itself in base64, or empty.
    """

    kind: ClassVar[str] = "failure"
    type: str
    message: str
    line: int
    traceback: list[str]
    pickled: str = ""


@dataclass(frozen=True)
class Exited(Event):
    """The launcher saw a rank end.

    ``code`` is negative for a signal, as in subprocess; ``asked`` says that the launcher
    was ending the run by then, so that the signal may be its own.
    """

    kind: ClassVar[str] = "exited"
    of_rank: int
    code: int
    asked: bool = False


@dataclass(frozen=True)
class Ended(Event):
    """The launcher's last word: every rank is gone."""

    kind: ClassVar[str] = "ended"
    ending: RunEnding
    detail: str = ""


EVENT_TYPES: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        Started, Status, Metrics, Progress, Display, Stderr, Vitals, Measured, Walked, Notice,
        Failure, Exited, Ended,
    )
}  # fmt: skip

MANY = (Metrics, Progress, Display, Stderr, Vitals)
"""Events without number: on a full disk they leave the last room to those that say why."""

E = TypeVar("E", bound=Event)


def encode(event: Event) -> str:
    """Return the event as one line of JSON, without the newline."""
    fields = {f.name: getattr(event, f.name) for f in dataclasses.fields(event)}
    return json.dumps({"kind": event.kind, **fields}, separators=(",", ":"))


def decode(line: str) -> Event | None:
    """Return the event of a line, or None for one that this version cannot read."""
    try:
        fields = json.loads(line)
        cls = EVENT_TYPES[fields.pop("kind")]
        known = {f.name for f in dataclasses.fields(cls)}
        return cls(**{k: v for k, v in fields.items() if k in known})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # cut short by a full disk, or of a version with other events


class EventWriter:
    """Appends one process's events to its file.  Each event is one ``write`` call."""

    def __init__(self, path: Path, rank: int) -> None:
        """Open ``path`` for appending; ``rank`` is stamped on every event."""
        self.path = path
        self.rank = rank
        self._file = path.open("ab", buffering=0)
        self._reserve = Reserve(self._file.fileno())

    def emit(self, cls: type[E], **fields: Any) -> E:
        """Write an event of type ``cls`` with the time of now; return it.

        Raises:
            OSError: the disk is full.  Nothing of the event has been written.
        """
        event = cls(time=time.time(), rank=self.rank, **fields)
        line = encode(event).encode() + b"\n"
        if cls in MANY:
            self._reserve.spare(len(line))
        written = self._file.write(line)
        if written < len(line):
            self._file.truncate(self._file.seek(0, os.SEEK_END) - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return event

    def close(self) -> None:
        """Close the file; later events would raise ValueError."""
        if not self._file.closed:
            self._reserve.release()
        self._file.close()


class EventTail:
    """Reads what was appended to an event file since the last look."""

    def __init__(self, path: Path) -> None:
        """Follow ``path``, which need not exist yet."""
        self.path = path
        self._offset = 0
        self._rest = b""

    def read(self) -> list[Event]:
        """Return the new whole events, oldest first; none when nothing was added."""
        try:
            if self.path.stat().st_size <= self._offset:  # several looks a turn find nothing new
                return []
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for line in lines if (event := decode(line.decode())) is not None]
