"""Typed events of ranks, launcher and kernel, as JSON lines.

Each process appends to its own file (``events/rank-0.jsonl``, ``events/launcher.jsonl``), and
readers tail these files. Processes share neither memory nor sockets. A reader waits for the rest of
an incomplete last line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

RankState = Literal["starting", "loading", "running", "collecting", "finished", "failed", "stopped"]
"""The states of a rank: loading reads the bundle, collecting writes the result."""

RunEnding = Literal["finished", "failed", "stopped", "timeout"]

RunState = Literal["starting", "running", "finished", "failed", "stopped", "timeout", "lost"]
"""The states of a run. Lost: the launcher disappeared without recording how the run ended."""

ACTIVE_STATES: frozenset[RunState] = frozenset({"starting", "running"})
"""States of a run that is not over."""

LAUNCHER = KERNEL = -1
"""The ``rank`` of events of the launcher and the kernel."""


@dataclass(frozen=True)
class Event:
    """The base of all events: ``time`` in seconds since the epoch, ``rank`` of the writer."""

    kind: ClassVar[str]
    time: float
    rank: int


@dataclass(frozen=True)
class Started(Event):
    """A process of the run has started; ``create_time`` guards against reused pids.

    ``host`` is the name of its machine, with several.
    """

    kind: ClassVar[str] = "started"
    pid: int
    create_time: float
    device: str = ""
    host: str = ""


@dataclass(frozen=True)
class Status(Event):
    """A rank entered a state; ``detail`` is a short sentence for display."""

    kind: ClassVar[str] = "status"
    state: RankState
    detail: str = ""


@dataclass(frozen=True)
class Metrics(Event):
    """New points of one curve, in step order.

    ``weights`` are the numbers of samples behind each value, for the average over ranks. A rank
    with an empty shard has weight 0.
    """

    kind: ClassVar[str] = "metrics"
    name: str
    steps: list[int]
    values: list[float]
    weights: list[float]


@dataclass(frozen=True)
class Progress(Event):
    """The progress of a loop: ``step`` of ``total`` (0 when unknown), shown as ``label``.

    ``key`` identifies the bar: ``"loader"`` for the training loader, another one for a tqdm bar.
    ``epoch`` counts passes over the loader from 1; 0 if not applicable.
    ``samples`` are those of all ranks up to training step ``train_step``; 0 if not applicable.
    """

    kind: ClassVar[str] = "progress"
    key: str
    label: str
    step: int
    total: int
    epoch: int = 0
    done: bool = False
    samples: int = 0
    train_step: int = 0


@dataclass(frozen=True)
class Display(Event):
    """A rich output of the cell, shown after ``offset`` bytes of the log.

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
class Heartbeat(Event):
    """The health of a rank, sent about once a second whatever its cell does.

    Attributes:
        step: the last step taken.
        step_time: seconds per step since the last heartbeat; 0 without a step.
        own_time: the part of it outside backward passes, where ranks wait for one another.
        cpu, cores: usage in percent of one core; usable cores.
        memory, memory_total: of the process and of the machine, in bytes.
        gpu: utilization in percent; -1 when unknown, as all below.
        gpu_memory, gpu_memory_total: in bytes; what torch allocated where the driver is not known.
        logged: size of the rank's log, in bytes.
        passes: backward passes started.
        sent: the bytes that the rank sent and the number of its collectives, per step since the
            last heartbeat, as in ``nbmgpu.strategies.communication``; empty without a step.
    """

    kind: ClassVar[str] = "heartbeat"
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
    logged: int = 0
    passes: int = 0
    sent: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class CheckpointWritten(Event):
    """A checkpoint is complete.

    Attributes:
        step: the training step after which it was written.
        nbytes: size of its files.
        held: seconds that it held up the cell.
        seconds: until it was complete.
    """

    kind: ClassVar[str] = "checkpoint"
    step: int
    nbytes: int
    held: float
    seconds: float


@dataclass(frozen=True)
class Measurements(Event):
    """Time and memory of a cell that ran with ``--steps``, on this rank.

    Attributes:
        steps: optimizer steps taken.
        seconds, samples: of each step but the first; samples of all ranks, 0 when unknown.
        held: bytes of tensors between steps.
        memory: peak bytes of the process, above those before the cell's data arrived.
        gpu_memory: peak bytes that torch allocated on the GPU, -1 without one; see
            ``nbmgpu.rank.metrics.memory``.
        sent, collectives: bytes that the rank sent, and its collectives, in the same steps as
            ``seconds``, as in ``nbmgpu.strategies.communication``.
    """

    kind: ClassVar[str] = "measured"
    steps: int
    seconds: list[float]
    samples: list[int]
    held: int
    memory: int
    gpu_memory: int = -1
    sent: list[int] = field(default_factory=list)
    collectives: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ParameterShards(Event):
    """The parameters that a rank stores between two steps, by layer; replaces an earlier one.

    Attributes:
        layers: names of the layers, such as ``model.layers.0``.
        elements: of each layer, however many ranks store them.
        stored, nbytes: elements and bytes of them on this rank.
    """

    kind: ClassVar[str] = "shards"
    layers: list[str]
    elements: list[int]
    stored: list[int]
    nbytes: list[int]


@dataclass(frozen=True)
class StepDigest(Event):
    """Digests of what a rank has done when its cell is finished, to be compared over ranks.

    Attributes:
        passes: backward passes.
        batches: digest of the batches that they used; equal on ranks that stepped together.
        losses: digest of how losses reduce over samples; empty if unknown.
        numbers: digests of numbers that a step combines with samples, by the number of its batch.
        weights: digest of replicated weights; empty if there are none.
        buffers: digests of persistent buffers, by module class and name.
        may_restart: whether the cell can start again with whole batches.
    """

    kind: ClassVar[str] = "step_digest"
    passes: int
    batches: str
    losses: str = ""
    numbers: dict[str, str] = field(default_factory=dict)
    weights: str = ""
    buffers: dict[str, str] = field(default_factory=dict)
    may_restart: bool = False


@dataclass(frozen=True)
class Notice(Event):
    """A message for the user, above all where numbers differ from one device.

    ``topic`` is a stable identifier (``random-step``, ``batch-norm``, ...); each topic is shown
    once, however many ranks emit it.
    """

    kind: ClassVar[str] = "notice"
    topic: str
    text: str


@dataclass(frozen=True)
class TensorBoardFolder(Event):
    """The rank writes to a folder that TensorBoard reads.

    ``folder`` is an absolute path on the rank's machine, or an address such as ``gs://...``.
    """

    kind: ClassVar[str] = "tensorboard"
    folder: str


@dataclass(frozen=True)
class Restart(Event):
    """A rank, or the reference, has ended itself for the cell to start again with whole batches.

    Nothing of the cell has left the ranks, other than its output.  ``reason`` says what the cell
    does on shards of a batch, as a predicate.
    """

    kind: ClassVar[str] = "restart"
    reason: str


@dataclass(frozen=True)
class Verified(Event):
    """The reference has ended: the first ``steps`` optimizer steps of the ranks are one device's.

    ``is_whole`` is whether these are all; ``reason`` is why it ended, or empty if time was up.
    """

    kind: ClassVar[str] = "verified"
    steps: int
    is_whole: bool
    reason: str = ""


@dataclass(frozen=True)
class Failure(Event):
    """An exception ended the cell on this rank.

    ``line`` is the line of the cell (1-based, 0 when unknown); ``traceback`` has ANSI colors;
    ``pickled`` is the exception in base64, or empty.
    """

    kind: ClassVar[str] = "failure"
    type: str
    message: str
    line: int
    traceback: list[str]
    pickled: str = ""


@dataclass(frozen=True)
class Exited(Event):
    """The launcher observed that a rank exited.

    ``code`` is negative for a signal, as in subprocess. ``terminating`` tells that the launcher was
    already terminating the run, so that the signal may be its own.
    """

    kind: ClassVar[str] = "exited"
    of_rank: int
    code: int
    terminating: bool = False


@dataclass(frozen=True)
class Hang(Event):
    """The launcher observed that ranks make no progress; with ``over``, that they do again.

    Attributes:
        seconds: since the last progress of the ranks that wait.
        cause: the likely cause, in a sentence.
        remedy: what to do about it, or empty.
        places: where each rank waits, in a sentence per rank.
        stacks: the Python stack of each rank, innermost frame last; empty where it is unknown.
        stops: whether the run ends because of it.
        over: whether there is progress again; the other attributes are then empty.
    """

    kind: ClassVar[str] = "hang"
    seconds: float = 0.0
    cause: str = ""
    remedy: str = ""
    places: list[str] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    stops: bool = False
    over: bool = False


@dataclass(frozen=True)
class Ended(Event):
    """The last event of the launcher: all ranks have exited."""

    kind: ClassVar[str] = "ended"
    ending: RunEnding
    detail: str = ""


E = TypeVar("E", bound=Event)
