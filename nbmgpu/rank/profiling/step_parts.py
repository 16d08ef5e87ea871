"""Divides the time of profiled steps into parts that add up to it.

Each moment of a step belongs to the first of these parts that applies:

1. compute: an operation of torch runs.  On an accelerator that is a kernel or a copy on the device,
   on the CPU an operation of the rank's threads that is not within the two parts below.
2. communication: a collective is under way, or the rank waits in one.
3. data: the rank waits for a loader, which includes loading in the rank's own process.
4. host: the rest, such as Python code, and the overhead of torch and nbmgpu.

So communication beside computing counts as compute.  How much there was of it is a figure of its
own, hidden communication.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .phases import COLLECTIVES, NEXT_BATCH

STEP_NAME = "ProfilerStep"
"""How ``torch.profiler`` names a step, before its number."""

DATA = (NEXT_BATCH, "enumerate(DataLoader)")
"""How names of waiting for a loader begin."""

COMMUNICATION = (
    *COLLECTIVES.values(), "c10d::", "gloo:", "nccl:", "mpi:", "ucc:", "xccl:",
    "_c10d_functional::", "c10d_functional::", "symm_mem::",
)  # fmt: skip
"""How names of collectives on the host begin."""

HOST_COLLECTIVES = (*COLLECTIVES.values(), "gloo:", "mpi:")
"""Those of them that communicate on the host, also beside an accelerator."""

DEVICE_COLLECTIVES = ("nccl", "rccl", "oneccl")
"""What names of a collective's kernels contain."""

COMPILED = "Call CompiledFxGraph"
"""What the name of a graph of ``torch.compile`` contains, whose kernels are not named."""

WRAPPERS = ("autograd::", "torch::autograd::", "profiler::")
"""How names begin that have ``::`` but no operation of their own."""

Spans = list[tuple[float, float]]
"""Beginnings and ends, in order, which do not overlap."""


@dataclass(frozen=True)
class TracedSpan:
    """Something in a trace.

    Attributes:
        name: of the operation, phase or kernel.
        start, end: in microseconds.
        thread: of the host.
        on_device: whether it runs on an accelerator.
        is_async: whether it ends on another thread than it has begun on.
    """

    name: str
    start: float
    end: float
    thread: int = 0
    on_device: bool = False
    is_async: bool = False


@dataclass(frozen=True)
class StepParts:
    """The parts of the time of a step, in seconds; see the module.

    Attributes:
        step_time: the sum of compute, communication, data and host.
        hidden: the communication beside computing, which is part of ``compute``.
    """

    step_time: float
    compute: float
    communication: float
    hidden: float
    data: float
    host: float


def traced_spans(events: Iterable[Any]) -> list[TracedSpan]:
    """Return the events of Kineto without annotations of the device's time line.

    ``torch.profiler.profile.events()`` makes objects and trees of them, which takes 25 times as
    long (measured: 8.5 s for six steps of a transformer with 12 layers).
    """
    spans = []
    for event in events:
        on_device = event.device_type().name != "CPU"
        if on_device and event.is_user_annotation():
            continue  # a phase of the host, repeated there
        start, thread = event.start_ns(), event.start_thread_id()
        end = start + event.duration_ns()
        is_async = event.is_async() or (not on_device and event.end_thread_id() != thread)
        spans.append(TracedSpan(event.name(), start / 1e3, end / 1e3, thread, on_device, is_async))
    return spans


def step_parts(spans: Sequence[TracedSpan], steps: int, on_accelerator: bool) -> StepParts | None:
    """Return the parts of the average step; None if there is none.

    Args:
        spans: of a rank.
        steps: how many steps are complete: the profiler may have been stopped within another.
        on_accelerator: whether the rank computes on one.
    """
    windows = sorted(
        (s.start, s.end) for s in spans if s.name.startswith(STEP_NAME) and not s.on_device
    )[:steps]
    if not windows:
        return None
    host = [span for span in spans if not span.on_device]
    data = _union(span for span in host if span.name.startswith(DATA))
    if on_accelerator:
        device = [span for span in spans if span.on_device]
        collectives = [span for span in device if is_device_collective(span.name)]
        communicating = _union(
            [*collectives, *(span for span in host if span.name.startswith(HOST_COLLECTIVES))]
        )
        computing = _union(span for span in device if not is_device_collective(span.name))
    else:
        communicating = _union(span for span in host if span.name.startswith(COMMUNICATION))
        computing = _computing_on_host(host)
    computing, communicating, data = (
        _within(part, windows) for part in (computing, communicating, data)
    )
    exposed = _without(communicating, computing)
    waiting = _without(_without(data, computing), exposed)
    total, per_step = _length(windows), 1e-6 / len(windows)
    parts = [_length(part) for part in (computing, exposed, waiting)]
    return StepParts(
        step_time=total * per_step,
        compute=parts[0] * per_step,
        communication=parts[1] * per_step,
        hidden=(_length(communicating) - parts[1]) * per_step,
        data=parts[2] * per_step,
        host=(total - sum(parts)) * per_step,
    )


def is_operation(name: str) -> bool:
    """Return whether something on the host computes: an operator, or a compiled graph."""
    is_operator = "::" in name and not name.startswith((*WRAPPERS, *COMMUNICATION))
    return (is_operator and " " not in name) or COMPILED in name


def is_device_collective(name: str) -> bool:
    """Return whether a kernel is that of a collective."""
    lower = name.lower()
    return any(each in lower for each in DEVICE_COLLECTIVES)


def _computing_on_host(spans: Iterable[TracedSpan]) -> Spans:
    """Return when any thread runs an operation that is not part of a collective or a loader."""
    threads: dict[int, list[TracedSpan]] = {}
    for span in spans:
        if not span.is_async:
            threads.setdefault(span.thread, []).append(span)
    found: list[Any] = []
    for own in threads.values():
        others = _union(span for span in own if span.name.startswith((*DATA, *COMMUNICATION)))
        found += _without(_union(span for span in own if is_operation(span.name)), others)
    return _joined(found)


def _union(spans: Iterable[TracedSpan]) -> Spans:
    return _joined((span.start, span.end) for span in spans)


def _joined(spans: Iterable[tuple[float, float]]) -> Spans:
    """Return when any of ``spans`` is."""
    joined: Spans = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    return joined


def _within(spans: Spans, others: Spans) -> Spans:
    """Return when both are."""
    return [
        (max(start, other_start), min(end, other_end))
        for (start, end), overlapping in _with_overlapping(spans, others)
        for other_start, other_end in overlapping
    ]


def _without(spans: Spans, others: Spans) -> Spans:
    """Return when ``spans`` are and ``others`` are not."""
    found = []
    for (start, end), overlapping in _with_overlapping(spans, others):
        left = start
        for other_start, other_end in overlapping:
            if other_start > left:
                found.append((left, other_start))
            left = other_end
        if left < end:
            found.append((left, end))
    return found


def _with_overlapping(spans: Spans, others: Spans) -> Iterator[tuple[tuple[float, float], Spans]]:
    """Yield each of ``spans`` with those of ``others`` that overlap with it."""
    first = 0
    for start, end in spans:
        while first < len(others) and others[first][1] <= start:
            first += 1
        last = first
        while last < len(others) and others[last][0] < end:
            last += 1
        yield (start, end), others[first:last]


def _length(spans: Spans) -> float:
    return sum(end - start for start, end in spans)
