"""Estimates the speed of a strategy relative to ``ddp`` on the same ranks, as a range.

The low end is a step that only communicates, so that speed is inversely proportional to the
communication volume.  In units of the parameters, ``ddp`` sends 2 (an all-reduce), ``zero1`` 3
(also the updated parameters of every rank), ``zero2`` 2 and ``fsdp`` 3 (parameters are gathered
again for the backward pass), and ``hsdp`` also a shard; see 1910.02054, section 7.  The high end
is a step whose computation hides all communication.  The factors for other engines and for
offloading are empirical.

Where ranks share a model or a sequence, they also send activations, which computation does not
hide: see ``activation_volume``.  Under ``pp``, ranks wait for each other besides.
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
    strategy = name.partition(" --mesh")[0]
    if strategy in ACTIVATIONS:
        activations = activation_volume(strategy, setup)
        return None if activations is None else (
            activations + _gradient_volume(strategy, setup)
        ) * passes  # fmt: skip
    return {
        "ddp": 2.0 * passes,
        "zero1": 2.0 * passes + 1,
        "zero2": (gather + 1) * passes,
        "fsdp": (2 * gather + 1) * passes,
        "hsdp": (2 * gather + 1 + 2 / setup.shard_ranks) * passes,
        "fsdp --cpu-offload": (2 * gather + 1) * passes,
    }.get(strategy)


ACTIVATIONS = {
    "tp": "activations in each layer (Megatron-LM, 1909.08053)",
    "tp --sequence-parallel": "activations in each layer (2205.05198)",
    "fsdp+tp": "activations in each layer, and gathers parts of parameters",
    "pp": "activations between stages, which wait for each other (GPipe, 1811.06965)",
    "tp+pp": "activations in each layer and between stages, which wait for each other",
    "fsdp+pp": "activations between stages, which wait for each other, and gathers stages",
    "fsdp+tp+pp": "activations in each layer and between stages, which wait for each other, and "
    "gathers stages",
    "sp": "queries, keys and values in each layer (Ulysses, 2309.14509), and gradients",
    "cp": "keys and values in each layer, and gradients",
}
"""What ranks send besides gradients, where they share a model or a sequence."""


def activation_volume(strategy: str, setup: TrainingSetup) -> float | None:
    """Return the activations that a rank sends per pass, in units of all parameters in float32.

    ``tp`` all-reduces the output of each block, and likewise in the backward pass: twice its size
    each (1909.08053, section 3; 2205.05198, section 4.2.1).  With ``--sequence-parallel``, an
    all-gather and a reduce-scatter send the same, and the backward pass gathers once more what
    layers have taken (section 4.2.2).  ``sp`` exchanges slices of queries, keys, values and
    outputs, and of their gradients (2309.14509, section 3.2); ``cp`` gathers keys and values, and
    sums their gradients.  ``pp`` passes the output of a stage on, and its gradient
    back, and all ranks get the last output; with ``tp`` besides, layers of a stage send what they
    do under ``tp``.  None if unknown.
    """
    acts = setup.activations
    if acts is None or acts.all_messages is None:
        return None
    ranks = setup.ranks / setup.data_parallel_ranks
    between_stages = 4 * acts.largest_message
    in_stage = 4 * acts.all_messages / setup.stages
    sent = {
        "tp": 4 * acts.all_messages,
        "tp --sequence-parallel": 5 * acts.all_messages,
        "fsdp+tp": 4 * acts.all_messages,
        "sp": 8 * acts.all_messages / ranks,
        "cp": 6 * acts.all_messages,
        "pp": between_stages,
        "tp+pp": in_stage + between_stages,
        "fsdp+pp": between_stages,
        "fsdp+tp+pp": in_stage + between_stages,
    }[strategy]
    return sent / max(1, setup.model_size.parameters)


def _gradient_volume(strategy: str, setup: TrainingSetup) -> float:
    """Return the parameters and gradients that a rank sends per pass."""
    if strategy == "fsdp+tp":
        part = setup.units.sharded / max(1, setup.model_size.parameters)
        return (2 * setup.gather_factor + 1) * part
    if strategy in ("fsdp+pp", "fsdp+tp+pp"):
        # A stage is gathered, and its gradients scattered; other modules are replicated.
        replicated = setup.kept if setup.replicas > 1 else setup.held - setup.gathered
        return 2 * setup.gathered + 2 * replicated
    if strategy in ("sp", "cp"):
        return 2.0 if setup.replicas == 1 else 4.0
    return 0.0 if setup.replicas == 1 else 2 * setup.held


def estimate_speed(name: str, setup: TrainingSetup) -> Speed:
    """Return the expected speed of the row ``name``."""
    if name in ("mp", "dp") and not setup.on_gpu:
        return speed_range(0.5, 1.0, "one process")
    if name == "dp":
        return speed_range(0.2, 0.9, "one process, which copies the model to every GPU each step")
    if name == "mp":
        share = 1 / setup.ranks
        return speed_range(share / 2, share, "one device computes at a time, the others wait")
    volume = communication_volume(name, setup)
    strategy = name.partition(" --mesh")[0]
    if volume is None:
        sent = ACTIVATIONS.get(strategy)
        return Speed(
            None, None, "unknown", f"sends {sent}" if sent else "depends on the code of the cell"
        )
    if setup.ranks == 1:
        return speed_range(1.0, 1.0, "a single rank sends nothing")
    ddp_volume = communication_volume("ddp", setup)
    assert ddp_volume is not None
    ratio = ddp_volume / volume if volume else 1.0
    low, high = min(1.0, ratio), max(1.0, ratio)
    reason = f"sends {_times(volume)} the parameters per step"
    if name != "ddp":
        reason += f", ddp {_times(ddp_volume)}"
    if strategy in ACTIVATIONS:
        busy = pipeline_shares(setup) if setup.stages > 1 else (1.0, 1.0)
        low, high = low * busy[0], busy[1]
        reason += f": {ACTIVATIONS[strategy]}"
    elif name.startswith("deepspeed"):
        low, reason = low * 0.7, reason + "; uses DeepSpeed's engine"
    elif name.startswith(("fsdp", "hsdp", "zero2")):
        low, reason = low * 0.9, reason + "; gathers parameters unit by unit"
    if "offload" in name:
        low, high = 0.1, 0.6
        reason = "copies parameters or states to and from the host; the optimizer runs on the CPU"
    return speed_range(low, high, reason)


def pipeline_shares(setup: TrainingSetup) -> tuple[float, float]:
    """Return which share of a pass a stage computes, at least and at most.

    Of P stages, each waits for (P - 1) / (M + P - 1) of a pass with M microbatches (1811.06965,
    section 2.3): two per stage, or one where a layer needs the whole batch.
    """
    stages = setup.stages
    samples = setup.activations.samples if setup.activations else 1
    most = min(2 * stages, max(1, samples))
    return 1 / stages, most / (most + stages - 1)


def _times(volume: float) -> str:
    return f"{volume:.3g}x"
