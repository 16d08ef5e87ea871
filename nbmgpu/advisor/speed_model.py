"""Estimates the speed of a strategy relative to ``ddp`` on the same ranks, as a range.

The low end is a step that only communicates, so that speed is inversely proportional to the
communication volume.  In units of the parameters, ``ddp`` sends 2 (an all-reduce), ``zero1`` 3
(also the updated parameters of every rank), ``zero2`` 2 and ``fsdp`` 3 (parameters are gathered
again for the backward pass), and ``hsdp`` also a shard; see 1910.02054, section 7.  The high end
is a step whose computation hides all communication.  The factors for other engines and for
offloading are empirical.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .training_setup import TrainingSetup

DEEPSPEED_VOLUMES = {
    "deepspeed_stage_1": (3.0, 0.0),
    "deepspeed_stage_2": (1.0, 1.0),
    "deepspeed_stage_3": (3.0, 0.0),
    "deepspeed_stage_2_offload": (1.0, 1.0),
    "deepspeed_stage_3_offload": (3.0, 0.0),
}
"""Communication volume of each backward pass, and of each optimizer step."""


@dataclass(frozen=True)
class Speed:
    """Speed relative to ``ddp`` on the same ranks.

    Attributes:
        low, high: bounds; None if unknown.
        text: the bounds as text.
        reason: what the bounds are based on.
    """

    low: float | None
    high: float | None
    text: str
    reason: str


def speed_range(low: float, high: float, reason: str) -> Speed:
    """Return a range of speeds with its text."""
    if low == high:
        text = "as ddp" if low == 1 else f"{low:.2g} of ddp"
    else:
        text = f"{low:.2g} to {high:.2g} of ddp"
    return Speed(round(low, 2), round(high, 2), text, reason)


def communication_volume(name: str, setup: TrainingSetup) -> float | None:
    """Return what a rank sends per optimizer step, in units of all parameters in float32."""
    passes = setup.accumulate
    gather = setup.gather_factor
    if name in DEEPSPEED_VOLUMES:
        per_pass, per_step = DEEPSPEED_VOLUMES[name]
        return per_pass * passes + per_step
    return {
        "ddp": 2.0 * passes,
        "zero1": 2.0 * passes + 1,
        "zero2": (gather + 1) * passes,
        "fsdp": (2 * gather + 1) * passes,
        "hsdp": (2 * gather + 1 + 2 / setup.shard_ranks) * passes,
        "fsdp --cpu-offload": (2 * gather + 1) * passes,
    }.get(name)


def estimate_speed(name: str, setup: TrainingSetup) -> Speed:
    """Return the expected speed of the strategy ``name``."""
    if name in ("mp", "dp") and not setup.on_gpu:
        return speed_range(0.5, 1.0, "one process")
    if name == "dp":
        return speed_range(0.2, 0.9, "one process, which copies the model to every GPU each step")
    if name == "mp":
        share = 1 / setup.ranks
        return speed_range(share / 2, share, "one device computes at a time, the others wait")
    volume = communication_volume(name, setup)
    if name in ("tp", "pp"):
        places = "in every layer" if name == "tp" else "between stages, which wait for each other"
        return Speed(None, None, "unknown", f"sends activations {places}")
    if volume is None:
        return Speed(None, None, "unknown", "depends on the code of the cell")
    if setup.ranks == 1:
        return speed_range(1.0, 1.0, "a single rank sends nothing")
    ddp_volume = communication_volume("ddp", setup)
    assert ddp_volume is not None
    ratio = ddp_volume / volume
    low, high = min(1.0, ratio), max(1.0, ratio)
    reason = f"sends {_times(volume)} the parameters per step"
    if name != "ddp":
        reason += f", ddp {_times(ddp_volume)}"
    if name.startswith("deepspeed"):
        low, reason = low * 0.7, reason + "; uses DeepSpeed's engine"
    elif name.startswith(("fsdp", "hsdp", "zero2")):
        low, reason = low * 0.9, reason + "; gathers parameters unit by unit"
    if "offload" in name:
        low, high = 0.1, 0.6
        reason = "copies parameters or states to and from the host; the optimizer runs on the CPU"
    return speed_range(low, high, reason)


def _times(volume: float) -> str:
    return f"{volume:.3g}x"
