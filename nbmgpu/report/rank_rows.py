"""A row per rank: its state, its load, and a warning if something is wrong."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace

from nbmgpu.formatting import format_bytes
from nbmgpu.runs.rank_view import RankView
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView

from .curves import Straggler, straggler
from .text_format import TONES, Tone, exit_word, number, plain, rank_place, span

SILENT = 5.0
"""Seconds without events after which a rank counts as silent while others send heartbeats."""

BEHIND = 5.0
"""Seconds of steps that a rank may be behind the first one."""

DIVERGENCE = 10.0
"""The ratio to the other ranks' loss above which a rank diverges."""


@dataclass(frozen=True)
class Meter:
    """A usage: as text, and as a fraction (-1 when unknown)."""

    text: str
    fraction: float


@dataclass(frozen=True)
class RankRow:
    """The row of a rank.

    ``device`` has the position in the device mesh, too, if there is one.  ``gpu`` and
    ``gpu_memory`` are None where there is no GPU.  ``slowest`` marks the
    straggler; ``warning`` is a sentence, or empty.
    """

    rank: int
    device: str
    label: str
    tone: Tone
    detail: str
    step: int
    step_time: str
    slowest: bool
    cpu: Meter
    memory: Meter
    gpu: Meter | None
    gpu_memory: Meter | None
    warning: str


UNKNOWN = Meter("", -1)


def rows(run: Run, now: float, stopping: bool = False) -> list[RankRow]:
    """Return a row per rank; in a run that is ``stopping``, a signal is not a failure."""
    view = run.view
    failed_rank = None if stopping and not view.failure else view.failed_rank
    slowest = straggler(run)
    warned = warnings(view, now, slowest)
    return [
        replace(
            _row(rank, seen, rank_place(run.record, rank, seen.host), rank == failed_rank),
            slowest=slowest is not None and rank == slowest.rank,
            warning=warning,
        )
        for rank, (seen, warning) in enumerate(zip(view.ranks, warned, strict=True))
    ]


def _row(rank: int, seen: RankView, place: str, failed: bool) -> RankRow:
    label: str = seen.state
    tone = TONES.get(label, "idle")
    if seen.failure or failed:
        label, tone = "failed", "bad"
    elif seen.exit_code and label != "failed":
        label, tone = "ended", "calm"
    if seen.exit_code and label != "stopped":
        label = f"{label} ({exit_word(seen.exit_code)})"
    step_time = span(seen.step_times[-1].step_time) if seen.step_times else ""
    return RankRow(
        rank, place, label, tone, plain(seen.detail), seen.step, step_time, False,
        _cpu(seen), _memory(seen), *_gpu(seen), "",
    )  # fmt: skip


def _cpu(seen: RankView) -> Meter:
    if seen.heartbeat is None:
        return UNKNOWN
    used = seen.heartbeat.cpu
    return Meter(f"{used:.0f} %", min(used / (100 * seen.heartbeat.cores), 1.0))


def _memory(seen: RankView) -> Meter:
    if seen.heartbeat is None:
        return UNKNOWN
    return _usage(seen.heartbeat.memory, seen.heartbeat.memory_total)


def _gpu(seen: RankView) -> tuple[Meter | None, Meter | None]:
    heartbeat = seen.heartbeat
    if heartbeat is None:
        return None, None
    if max(heartbeat.gpu, heartbeat.gpu_memory) < 0:
        return None, None
    busy = Meter(f"{heartbeat.gpu:.0f} %", heartbeat.gpu / 100) if heartbeat.gpu >= 0 else UNKNOWN
    return busy, _usage(heartbeat.gpu_memory, heartbeat.gpu_memory_total)


def _usage(used: int, total: int) -> Meter:
    if used < 0:
        return UNKNOWN
    return Meter(format_bytes(used), min(used / total, 1.0) if total > 0 else -1)


def warnings(view: RunView, now: float, slowest: Straggler | None) -> list[str]:
    """Return a warning for each rank; usually empty."""
    going = view.ended is None
    found, name = [], loss_name(view)
    for rank in range(len(view.ranks)):
        text = _diverges(view, rank, name)
        if going and view.ranks[rank].exited is None:
            text = _silent(view, rank, now) or _behind(view, rank) or text or _slow(slowest, rank)
        found.append(text)
    return found


def _others(view: RunView, rank: int) -> list[RankView]:
    return [seen for number, seen in enumerate(view.ranks) if number != rank]


def _silent(view: RunView, rank: int, now: float) -> str:
    seen = view.ranks[rank]
    quiet = now - seen.last_time
    beats = any(now - other.last_time < SILENT / 2 for other in _others(view, rank))
    if seen.heartbeat is None or quiet < SILENT or not beats:
        return ""
    why = "it hangs, is suspended, or is busy in compiled code"
    return f"silent for {quiet:.0f} s while others continue: {why}"


def _behind(view: RunView, rank: int) -> str:
    seen = view.ranks[rank]
    first = max(view.ranks, key=lambda other: other.step)
    missing = first.step - seen.step
    if missing < 2 or not first.step_times or missing * first.step_times[-1].step_time < BEHIND:
        return ""
    return f"{missing:,} steps behind rank {view.ranks.index(first)}"


def _slow(slowest: Straggler | None, rank: int) -> str:
    return slowest.warning if slowest and slowest.rank == rank else ""


def _diverges(view: RunView, rank: int, name: str) -> str:
    recent = view.ranks[rank].recent.get(name)
    if recent is None:
        return ""
    if not math.isfinite(recent.last):
        return f"its {plain(name)} is {number(recent.last)}"
    means = [abs(other.recent[name].mean) for other in _others(view, rank) if name in other.recent]
    known = [mean for mean in means if math.isfinite(mean)]
    if not known or recent.count < 3 or not math.isfinite(recent.mean):
        return ""
    middle = statistics.median(known)
    if abs(recent.mean) < DIVERGENCE * middle or middle == 0:
        return ""
    return f"its {plain(name)} is {number(recent.mean)}, the other ranks' is about {number(middle)}"


def loss_name(view: RunView) -> str:
    """Return the metric by which ranks are compared: the loss, or empty."""
    names = [name for rank in view.ranks for name in rank.recent]
    return next((n for n in sorted(names, key=lambda n: n != "loss") if "loss" in n.lower()), "")
