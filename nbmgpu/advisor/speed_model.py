"""How fast a strategy is, compared with ``ddp`` on the same ranks: a range, and why.

The slow end is a step that does nothing but send, so that speeds are as volumes: in units of
the parameters, ``ddp`` sends 2 (an all-reduce), ``zero1`` 3 (and every rank's updated part),
``zero2`` 2, ``fsdp`` 3 (gathered again for the backward pass); see 1910.02054, section 7.  The
fast end is a step that computes so long that nobody sees it send.  Factors for engines and
for the way to the host are experience, not theory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .memory_model import Case

DEEPSPEEDS = {
    "deepspeed_stage_1": (3.0, 0.0),
    "deepspeed_stage_2": (1.0, 1.0),
    "deepspeed_stage_3": (3.0, 0.0),
    "deepspeed_stage_2_offload": (1.0, 1.0),
    "deepspeed_stage_3_offload": (3.0, 0.0),
}


@dataclass(frozen=True)
class Speed:
    """Speed relative to ``ddp`` on the same ranks, in words as well, and the reason."""

    low: float | None
    high: float | None
    words: str
    reason: str


def between(low: float, high: float, reason: str) -> Speed:
    """Return a range of speeds, with its words."""
    if low == high:
        words = "as ddp" if low == 1 else f"{low:.2g} of ddp"
    else:
        words = f"{low:.2g} to {high:.2g} of ddp"
    return Speed(round(low, 2), round(high, 2), words, reason)


def volumes(name: str, case: Case) -> float | None:
    """Return what a rank sends for one optimizer step, in units of all parameters in float32."""
    passes = case.accumulate
    gathers = case.half
    if name in DEEPSPEEDS:
        each, once = DEEPSPEEDS[name]
        return each * passes + once
    return {
        "ddp": 2.0 * passes,
        "zero1": 2.0 * passes + 1,
        "zero2": (gathers + 1) * passes,
        "fsdp": (2 * gathers + 1) * passes,
        "fsdp --cpu-offload": (2 * gathers + 1) * passes,
    }.get(name)


def speed_of(name: str, case: Case) -> Speed:
    """Return how fast the strategy ``name`` is to be expected."""
    if name == "dp":
        reason = "one process, and a copy of the model to every GPU at each step"
        return between(0.2, 0.9, reason) if case.on_gpu else between(0.5, 1.0, "one process")
    sent = volumes(name, case)
    if sent is None:
        return Speed(None, None, "unknown", "as fast as the cell makes it")
    if case.ranks == 1:
        return between(1.0, 1.0, "one rank sends nothing")
    plain = volumes("ddp", case)
    assert plain is not None
    ratio = plain / sent
    low, high = min(1.0, ratio), max(1.0, ratio)
    reason = f"sends {_times(sent)} the parameters per step"
    if name != "ddp":
        reason += f", ddp {_times(plain)}"
    if name.startswith("deepspeed"):
        low, reason = low * 0.7, reason + "; its own engine"
    elif name.startswith(("fsdp", "zero2")):
        low, reason = low * 0.9, reason + "; in pieces, as they are needed"
    if "offload" in name:
        low, high = 0.1, 0.6
        reason = "parameters or states cross to the host and back; the CPU takes the step"
    return between(low, high, reason)


def _times(volume: float) -> str:
    return f"{volume:.3g}x"
