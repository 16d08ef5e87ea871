"""Text and numbers, formatted for people; labextension/src/view/words.ts translates some texts."""

from __future__ import annotations

import math
import re
import signal
import time
from typing import Literal

import numpy as np

from nbmgpu.formatting import format_bytes, format_count
from nbmgpu.runs.events import CheckpointWritten, RunState
from nbmgpu.runs.hang_text import hang_notice
from nbmgpu.runs.record import RunRecord
from nbmgpu.runs.run import Run
from nbmgpu.runs.view import RunView

Tone = Literal["idle", "busy", "good", "bad", "calm"]
"""The severity that a front end colors: waiting, working, succeeded, failed, ended neutrally."""

LISTED = 16
"""Ranks that are listed at most."""

ENDING_WORDS = {"timeout": "timed out"}
TONES: dict[str, Tone] = {
    "starting": "idle", "loading": "idle",
    "running": "busy", "collecting": "busy", "stopping": "busy",
    "finished": "good", "failed": "bad", "timeout": "bad", "lost": "bad", "stopped": "calm",
}  # fmt: skip

NOT_STARTED = "not started"
"""The label of a rank that counts as killed because its node has not started it."""

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_EXPONENT = re.compile(r"\.?0*e\+?(-?)0*")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROLS_BUT_ESCAPE = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;:]*m)")


def plain(text: str) -> str:
    """Return ``text`` as a terminal would show it, without colors and control characters.

    After a carriage return, a line is overwritten.
    """
    return _clean(_CONTROLS.sub("", _drawn(_ESCAPES.sub("", text))))


def coloured(text: str) -> str:
    """Like ``plain``, but keep colors (SGR escape codes)."""
    text = _ESCAPES.sub(lambda code: code[0] if _COLOURS.fullmatch(code[0]) else "", text)
    return _clean(_CONTROLS_BUT_ESCAPE.sub("", _drawn(text)))


def _drawn(text: str) -> str:
    if "\r" in text:
        lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
        text = "\n".join(lines)
    return text


def _clean(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode()


def number(value: float) -> str:
    """Format ``value``: ``0.1235``, ``1,235``, ``1.2e-5``."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 1e-3 <= abs(value) < 1e3:
        return f"{value:.4g}"
    if 1e3 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return _EXPONENT.sub(r"e\1", f"{value:.2e}")


def clock(seconds: float, tenths: bool = True) -> str:
    """Format a duration: ``12.3 s`` (``12 s`` without ``tenths``), ``3:05``, ``1:02:03``."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 60:
        return f"{seconds:.1f} s" if tenths else f"{int(seconds)} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def span(seconds: float) -> str:
    """Format a short time: ``0.35 ms``, ``12 ms``, ``1.2 s``."""
    if seconds < 1:
        return f"{seconds * 1e3:.2g} ms" if seconds < 0.01 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.3g} s" if seconds < 60 else clock(seconds)


def state_word(state: RunState) -> str:
    """Return the displayed label of a run's state."""
    return ENDING_WORDS.get(state, state)


def ending_sentence(state: RunState) -> str:
    """Return how a run ended, as the end of a sentence."""
    known = {
        "lost": "its launcher disappeared without recording how it ended",
        "timeout": "it exceeded its time limit",
    }
    return known.get(state, state)


def headline(record: RunRecord) -> str:
    """Return strategy, ranks, devices and mesh: ``tp on 4 ranks (cuda:0-3), dp=2 x tp=2``."""
    ranks = format_count(record.world_size, "rank")
    nodes = f" of {record.nodes} nodes" if record.nodes > 1 else ""
    text = f"{record.options.strategy} on {ranks}{nodes} ({device_names(record.devices)})"
    mesh = record.options.values.get("mesh") or ()
    return plain(", ".join(filter(None, [text, " x ".join(mesh)])))


def rank_lines(texts: list[str]) -> list[str]:
    """Return what is said of each rank, four on a line; of many ranks, the first ones."""
    some = texts[:LISTED]
    lines = [", ".join(some[first : first + 4]) for first in range(0, len(some), 4)]
    return lines if len(some) == len(texts) else [*lines, "..."]


def rank_place(record: RunRecord, rank: int, host: str = "") -> str:
    """Return where a rank is: its device, and its position in a mesh (``cuda:2, dp 1 tp 0``).

    With several machines, the name of its ``host`` comes first.
    """
    places = [host, record.devices[rank], record.mesh_position(rank)]
    return plain(", ".join(filter(None, places)))


def device_names(devices: list[str]) -> str:
    """Format devices: ``cpu``, ``cuda:0-3``, ``cuda:0, cuda:2``."""
    names = list(dict.fromkeys(devices))
    kinds = {name.partition(":")[0] for name in names}
    numbers = [int(n) for name in names if (n := name.partition(":")[2]).isdigit()]
    in_a_row = numbers == list(range(numbers[0], numbers[0] + len(names))) if numbers else False
    if len(names) > 1 and len(kinds) == 1 and in_a_row:
        return f"{kinds.pop()}:{numbers[0]}-{numbers[-1]}"
    return ", ".join(names)


def batch_line(run: Run) -> str:
    """Return the batch arithmetic; nothing where it turned out that no batch was split."""
    return "" if "not-sharded" in run.view.notices else plain(run.record.batch_line)


def notices(view: RunView) -> list[str]:
    """Return the texts of all notices, in order, of a hang that lasts, and of a checkpoint.

    The last one is about a loss that has become infinite or nan.
    """
    texts = view.notice_texts
    if view.hang is not None and not view.hang.stops:
        texts.append(hang_notice(view.hang))
    if view.checkpoint is not None:
        texts.append(checkpoint_text(view.checkpoint))
    if diverged := divergence_text(view):
        texts.append(diverged)
    return [plain(text) for text in texts]


def divergence_text(view: RunView) -> str:
    """Return since when the loss has not been finite; empty if it is, or none was reported."""
    curve = view.curves.get("loss")
    steps, values = curve.arrays() if curve else (np.empty(0), np.empty(0))
    if not len(values) or np.isfinite(values[-1]):
        return ""
    finite = np.flatnonzero(np.isfinite(values))
    first = finite[-1] + 1 if len(finite) else 0
    return (
        f"The loss is {values[first]:g} from step {steps[first]} on: training has diverged. A "
        "smaller learning rate may prevent that, or --clip 1, which limits the gradients' norm."
    )


def verified(view: RunView) -> str:
    """Return how many steps were compared with one device, or why none; empty without training."""
    found = view.reports.verified
    if found is None:
        return ""
    reason = "" if view.ending == "failed" else found.reason
    if not found.steps:
        return f"not compared with one device: {reason}" if reason else ""
    steps = format_count(found.steps, "optimizer step")
    if found.steps > 1:
        steps = f"{'all' if found.is_whole else 'first'} {steps}"
    end = f"; then {reason}" if reason else ""
    return f"{steps} compared: the gradients are one device's (not what the cell prints){end}"


def checkpoint_text(checkpoint: CheckpointWritten) -> str:
    """Return where and when the newest checkpoint was written, its cost, and how to go on there."""
    when = time.strftime("%H:%M:%S", time.localtime(checkpoint.time))
    return (
        f"Checkpoint after step {checkpoint.step} at {when}: {format_bytes(checkpoint.nbytes)}; "
        f"it held up the cell for {1000 * checkpoint.held:.0f} ms, and was complete after "
        f"{checkpoint.seconds:.1f} s. To go on there: %%mgpu --resume"
    )


def exit_word(code: int) -> str:
    """Return ``exit 1``, or the signal's name for a negative code."""
    try:
        return signal.Signals(-code).name if code < 0 else f"exit {code}"
    except ValueError:
        return f"signal {-code}"
