"""What there is to show of a run, as plain text and numbers.

The panel and the summary both draw this; wording and arithmetic for people
live here, once.
"""

from __future__ import annotations

import math
import re
import signal
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nbmgpu.events import Progress
from nbmgpu.run import Run, RunRecord
from nbmgpu.view import Curve, RunView

Tone = Literal["idle", "busy", "good", "bad", "calm"]
"""How something should strike the eye: not yet, at work, done well, failed, ended without fault."""

ENDING_WORDS = {"timeout": "timed out"}
TONES: dict[str, Tone] = {
    "starting": "idle", "loading": "idle",
    "running": "busy", "collecting": "busy", "stopping": "busy",
    "finished": "good", "failed": "bad", "timeout": "bad", "lost": "bad", "stopped": "calm",
}  # fmt: skip

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_EXPONENT = re.compile(r"\.?0*e\+?(-?)0*")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Return ``text`` as a terminal would leave it, without colours and control characters.

    A carriage return takes the pen back to the start of its line, so of a
    redrawn line the last drawing stays.
    """
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
        text = "\n".join(lines)
    return _CONTROLS.sub("", text).encode("utf-8", "replace").decode()


def number(value: float) -> str:
    """Return ``value`` for people: ``0.1235``, ``1,235``, ``1.2e-5``."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.4g}"
    if 1e3 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return _EXPONENT.sub(r"e\1", f"{value:.2e}")


def clock(seconds: float, tenths: bool = True) -> str:
    """Return a duration: ``12.3 s`` (``12 s`` without ``tenths``), ``3:05``, ``1:02:03``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if tenths else f"{int(seconds)} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def state_word(state: str) -> str:
    """Return the word for a run's state."""
    return ENDING_WORDS.get(state, state)


def headline(record: RunRecord) -> str:
    """Return strategy, world size and devices: ``ddp on 2 ranks (cuda:0-1)``."""
    ranks = "1 rank" if record.world_size == 1 else f"{record.world_size} ranks"
    return plain(f"{record.strategy} on {ranks} ({device_names(record.devices)})")


def device_names(devices: list[str]) -> str:
    """Return the devices in short: ``cpu``, ``cuda:0-3``, ``cuda:0, cuda:2``."""
    names = list(dict.fromkeys(devices))
    kinds = {name.partition(":")[0] for name in names}
    numbers = [int(n) for name in names if (n := name.partition(":")[2]).isdigit()]
    in_a_row = numbers == list(range(numbers[0], numbers[0] + len(names))) if numbers else False
    if len(names) > 1 and len(kinds) == 1 and in_a_row:
        return f"{kinds.pop()}:{numbers[0]}-{numbers[-1]}"
    return ", ".join(names)


def batch_line(record: RunRecord) -> str:
    """Return the batch arithmetic, or nothing."""
    return plain(record.batch_line)


def notices(view: RunView) -> list[str]:
    """Return the texts of all notices, in the order in which they came."""
    return [plain(notice.text) for notice in view.notices.values()]


def curve_names(view: RunView) -> list[str]:
    """Return the curves' names: the loss first, the others as they came."""
    drawn = [name for name, curve in view.curves.items() if len(curve)]
    return sorted(drawn, key=lambda name: name != "loss")


def thin(curve: Curve, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and values of at most ``limit`` points that draw the same picture.

    Of each stretch of steps the lowest and the highest value stay, and one that
    is not a number, so that neither a spike nor a gap is lost; so do the two ends.
    """
    steps, values = curve.arrays()
    count = len(steps)
    if count <= limit:
        return steps, values
    width = math.ceil(count / max(1, (limit - 2) // 3))
    stretches = math.ceil(count / width)
    index = np.minimum(np.arange(stretches * width), count - 1).reshape(stretches, width)
    block = values[index]
    finite = np.isfinite(block)
    lowest = np.where(finite, block, np.inf).argmin(axis=1)
    highest = np.where(finite, block, -np.inf).argmax(axis=1)
    gap = finite.argmin(axis=1)  # the first in its stretch that is no number
    rows = np.arange(stretches)
    kept = np.unique([0, count - 1, *index[rows, lowest], *index[rows, highest], *index[rows, gap]])
    return steps[kept], values[kept]


@dataclass(frozen=True)
class Bar:
    """A progress bar: what is left and right of it, and how full it is (-1 when unknown)."""

    key: str
    label: str
    count: str
    fraction: float


def bars(view: RunView) -> list[Bar]:
    """Return the loader's bar and the newest three of the others that are not done."""
    others = [p for p in view.progress.values() if p.key != "loader" and not p.done]
    loader = [p for p in view.progress.values() if p.key == "loader"]
    return [_bar(p) for p in loader + others[-3:]]


def _bar(progress: Progress) -> Bar:
    label = plain(progress.label)
    if progress.epoch and "epoch" not in label.lower():
        label = f"epoch {progress.epoch} · {label}" if label else f"epoch {progress.epoch}"
    if progress.total <= 0:
        return Bar(progress.key, label, f"{progress.step:,}", -1)
    count = f"{progress.step:,} / {progress.total:,}"
    return Bar(progress.key, label, count, min(1.0, progress.step / progress.total))


@dataclass(frozen=True)
class Mark:
    """A rank in one word."""

    rank: int
    word: str
    tone: Tone
    device: str
    detail: str


def marks(run: Run, stopping: bool = False) -> list[Mark]:
    """Return a mark for each rank.  Ranks of a run that is ``stopping`` do not fail by a signal."""
    view = run.view
    culprit = None if stopping and not view.failure else view.culprit
    found = []
    for rank, (seen, device) in enumerate(zip(view.ranks, run.record.devices, strict=True)):
        word, tone = seen.state, TONES.get(seen.state, "idle")
        if seen.failure or rank == culprit:
            word, tone = "failed", "bad"
        elif seen.exit_code and word != "failed":
            word, tone = "ended", "calm"
        if seen.exit_code and word != "stopped":
            word = f"{word} ({exit_word(seen.exit_code)})"
        found.append(Mark(rank, word, tone, device, plain(seen.detail)))
    return found


def exit_word(code: int) -> str:
    """Return ``exit 1``, or the signal's name for a negative code."""
    try:
        return signal.Signals(-code).name if code < 0 else f"exit {code}"
    except ValueError:
        return f"signal {-code}"


@dataclass(frozen=True)
class Cause:
    """Why a run failed: who, what, and the cell's own line (``number``, 0 when unknown)."""

    who: str
    what: str
    number: int = 0
    line: str = ""


def cause(run: Run, state: str) -> Cause | None:
    """Return why the run, which is in ``state``, did not end well, or None."""
    view = run.view
    if failure := view.failure:
        lines = run.cell.splitlines()
        line = lines[failure.line - 1] if 0 < failure.line <= len(lines) else ""
        what = f"{failure.type}: {failure.message}" if failure.message else failure.type
        return Cause(f"rank {failure.rank}", plain(what), failure.line, plain(line.strip()))
    if state == "lost":
        return Cause("", "The launcher is gone and has not said how the run ended")
    if view.ended and TONES[state] == "bad":
        who = "" if view.culprit is None else f"rank {view.culprit}"
        return Cause(who, plain(view.ended.detail) or state_word(state))
    return None
