"""A row per rank: its state, its load, and a warning if something is wrong."""

from __future__ import annotations

import bisect
import heapq
import math
from dataclasses import dataclass, replace

from nbmgpu.formatting import format_bytes
from nbmgpu.runs.rank_view import RankView
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView

from .curves import Straggler, straggler
from .text_format import NOT_STARTED, TONES, Tone, exit_word, number, plain, rank_place, span

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
    if seen.never_started:
        label, tone = NOT_STARTED, "bad" if failed else "calm"
    elif seen.failure or failed:
        label, tone = "failed", "bad"
    elif seen.exit_code and label != "failed":
        label, tone = "ended", "calm"
    if seen.exit_code and label not in ("stopped", NOT_STARTED):
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
    return usage(seen.heartbeat.memory, seen.heartbeat.memory_total)


def _gpu(seen: RankView) -> tuple[Meter | None, Meter | None]:
    heartbeat = seen.heartbeat
    if heartbeat is None:
        return None, None
    if max(heartbeat.gpu, heartbeat.gpu_memory) < 0:
        return None, None
    busy = Meter(f"{heartbeat.gpu:.0f} %", heartbeat.gpu / 100) if heartbeat.gpu >= 0 else UNKNOWN
    return busy, usage(heartbeat.gpu_memory, heartbeat.gpu_memory_total)


def usage(used: int, total: int) -> Meter:
    """Return a usage of memory, in bytes; negative numbers are unknown."""
    if used < 0:
        return UNKNOWN
    return Meter(format_bytes(used), min(used / total, 1.0) if total > 0 else -1)


def warnings(view: RunView, now: float, slowest: Straggler | None) -> list[str]:
    """Return a warning for each rank; usually empty."""
    going = view.ended is None
    losses, newest = _RecentLosses(view), _two_newest(view)
    first = max(range(len(view.ranks)), key=lambda rank: view.ranks[rank].step)
    found = []
    for rank, seen in enumerate(view.ranks):
        text = losses.warning(rank)
        if going and seen.exited is None:
            # Others continue if the newest event of another rank is new.
            newest_other = newest[1] if seen.last_time == newest[0] else newest[0]
            silent = _silent(seen, now, now - newest_other < SILENT / 2)
            text = silent or _behind(view, rank, first) or text or _slow(slowest, rank)
        found.append(text)
    return found


def _two_newest(view: RunView) -> tuple[float, float]:
    """Return when the two ranks with the newest events wrote them."""
    first, second = heapq.nlargest(2, [-math.inf, -math.inf, *(r.last_time for r in view.ranks)])
    return first, second


def _silent(seen: RankView, now: float, others_continue: bool) -> str:
    quiet = now - seen.last_time
    if seen.heartbeat is None or quiet < SILENT or not others_continue:
        return ""
    why = "it hangs, is suspended, or is busy in compiled code"
    return f"silent for {quiet:.0f} s while others continue: {why}"


def _behind(view: RunView, rank: int, first: int) -> str:
    ahead = view.ranks[first]
    missing = ahead.step - view.ranks[rank].step
    if missing < 2 or not ahead.step_times or missing * ahead.step_times[-1].step_time < BEHIND:
        return ""
    return f"{missing:,} steps behind rank {first}"


def _slow(slowest: Straggler | None, rank: int) -> str:
    return slowest.warning if slowest and slowest.rank == rank else ""


class _RecentLosses:
    """The recent loss of each rank, to be compared with the median of the others."""

    def __init__(self, view: RunView) -> None:
        self._name = loss_name(view)
        self._recent = [rank.recent.get(self._name) for rank in view.ranks]
        means = (abs(recent.mean) for recent in self._recent if recent is not None)
        self._sorted = sorted(mean for mean in means if math.isfinite(mean))

    def warning(self, rank: int) -> str:
        """Return a warning if the loss of ``rank`` is not finite, or far from the others'."""
        recent = self._recent[rank]
        if recent is None:
            return ""
        if not math.isfinite(recent.last):
            return f"its {plain(self._name)} is {number(recent.last)}"
        if len(self._sorted) < 2 or recent.count < 3 or not math.isfinite(recent.mean):
            return ""
        middle = self._median_without(abs(recent.mean))
        if abs(recent.mean) < DIVERGENCE * middle or middle == 0:
            return ""
        others = f"the other ranks' is about {number(middle)}"
        return f"its {plain(self._name)} is {number(recent.mean)}, {others}"

    def _median_without(self, mean: float) -> float:
        """Return the median of all means but ``mean``."""
        left, place = len(self._sorted) - 1, bisect.bisect_left(self._sorted, mean)
        at = ((left - 1) // 2, left // 2)
        low, high = (self._sorted[index + (index >= place)] for index in at)
        return (low + high) / 2


def loss_name(view: RunView) -> str:
    """Return the metric by which ranks are compared: the loss, or empty."""
    names = dict.fromkeys(name for rank in view.ranks for name in rank.recent)
    return next((n for n in sorted(names, key=lambda n: n != "loss") if "loss" in n.lower()), "")
