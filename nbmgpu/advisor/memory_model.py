"""Estimates the peak memory of one rank, by strategy and by kind of memory.

Rajbhandari et al., ZeRO (1910.02054), count for mixed precision with Adam, per parameter: 16
bytes under data parallelism (2 for the parameter, 2 for its gradient, 12 for the optimizer with a
float32 copy), 4 + 12/N when states are sharded (stage 1), 2 + 14/N with gradients as well (stage
2), 16/N when everything is sharded (stage 3); see ``zero_model_states``.

The strategies of this package differ.  Parameters stay in float32 under ``--precision``
(autocast), so Adam takes 4 + 4 + 8 = 16 bytes again.  ``ddp`` and ``zero1`` take 4 more for the
gradient buckets.  ``zero1`` assigns whole parameters to ranks.  ``zero2`` and ``fsdp`` are FSDP2,
which gathers units and frees them again.  tests/advisor compares these estimates with
measurements on ranks.

DeepSpeed documents 4 + 16/N bytes for its stage 2, while its estimator
(``estimate_zero2_model_states_mem_needs``) computes 2 + 18/N: for the 2851 million parameters
and 8 GPUs of its documentation 11.3 GiB, where the documentation has 15.93.  For stage 3 both have
18/N, and 4 bytes for each element of the largest layer.  Neither accounts for training in float32,
nor for the bucket in which gradients are reduced: here as large as the model, up to 500 million
elements.
"""

from __future__ import annotations

from collections.abc import Callable

from .interval import KIB, Interval
from .model_parallel_memory import (
    layers_memory,
    pipeline_parallel_memory,
    sequence_parallel_memory,
    sharded_pipeline_memory,
    sliced_tensor_parallel_memory,
    tensor_parallel_memory,
)
from .row_kinds import SLICED
from .training_setup import KINDS, Kind, MemoryByKind, TrainingSetup

GIB = KIB**3
CPU_PROCESS = Interval(0.015 * GIB, 0.3 * GIB)
"""Private memory of a CPU rank, without the libraries that ranks share."""

GPU_PROCESS = Interval(0.4 * GIB, 1.5 * GIB)
"""A CUDA context, NCCL's buffers and library workspaces."""

FRAGMENTATION = 0.06
"""Upper bound of the fraction that the CUDA caching allocator loses to fragmentation."""

DEEPSPEED_BUCKET = 500_000_000
"""Maximum number of elements in DeepSpeed's gradient bucket."""


def zero_model_states(stage: int, ranks: int, parameters: float) -> float:
    """Return the bytes of model states in the ZeRO paper, for mixed precision with Adam."""
    return parameters * {
        0: 16.0, 1: 4 + 12 / ranks, 2: 2 + 14 / ranks, 3: 16 / ranks,
    }[stage]  # fmt: skip


def ddp_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``ddp``: everything is replicated, and gradient buckets stay allocated."""
    size = setup.model_size
    gradients = size.gradients
    return {
        "parameters": Interval.exact(size.parameters),
        "gradients": Interval.exact(gradients),
        "optimizer": Interval.exact(size.all_states),
        "activations": setup.activation_memory(gradients),
        "buffers": Interval.exact(size.buffers + gradients),
    }


def zero1_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``zero1``: as ``ddp``, with states only for the parameters assigned to the rank."""
    size = setup.model_size
    largest = size.largest_state_shard(setup.ranks)
    memory = ddp_memory(setup)
    memory["optimizer"] = Interval(min(largest, size.all_states / setup.ranks), largest)
    return memory


def fsdp_memory(
    setup: TrainingSetup, keep_gathered: bool = False, offload: bool = False
) -> dict[Kind, Interval]:
    """Estimate FSDP2: everything is sharded, and units are gathered.

    The root's own parameters, outside of all units, and their gradients stay gathered until the
    end of the backward pass.  Under ``fsdp+tp``, ``setup.units`` are those of parts of layers.

    Args:
        setup: what is trained, and on what.
        keep_gathered: units stay gathered after the forward pass.
        offload: shards are kept in the memory of the host.
    """
    size, units, factor = setup.model_size, setup.units, setup.gather_factor
    ranks = setup.shard_ranks
    total = max(1, size.parameters)
    sharded, replicated = units.sharded / total, units.replicated / total
    shard = 0.0 if offload else 1 / ranks
    fraction = replicated + sharded * shard
    root, unit = float(units.root), float(units.largest)
    gradients = size.gradients * fraction
    gathered = (units.sharded if keep_gathered else root + unit) * factor
    # Besides the unit that computes: the next unit is gathered, and the gradients of four units
    # are in flight; with more ranks, which wait for one another, those of five.
    prefetched = 0 if keep_gathered else unit * factor
    in_flight = 4 if ranks <= 2 else 5
    most = gathered + prefetched + root * (factor + 1) + unit * (factor + in_flight)
    acts = setup.sharded_activation_memory(fraction)
    # At the start of the backward pass; when its last unit is gathered and has its gradients, and
    # those of other units are sharded; or when the root has its gradients.
    copies = 2 if size.gradients == size.parameters else 1
    last = float(units.smallest)
    last_unit = gradients - (root + last) * shard + factor * (root + last * copies)
    last_root = gradients - root * shard + factor * root * copies
    least = max(acts.low + gathered, last_unit, last_root) - gradients
    transient = min(gathered, least)
    return {
        "parameters": Interval.exact(size.parameters * fraction),
        "gradients": Interval.exact(gradients),
        "optimizer": Interval.exact(size.all_states * fraction),
        "activations": Interval(least - transient, acts.high),
        "buffers": Interval(transient, most) + Interval.exact(size.buffers),
    }


def zero2_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``zero2``: as ``fsdp``, with parameters gathered until the backward pass."""
    return fsdp_memory(setup, keep_gathered=True)


def offloaded_fsdp_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``fsdp --cpu-offload``: as ``fsdp``, with shards in the memory of the host."""
    return fsdp_memory(setup, offload=True)


def deepspeed_memory(
    setup: TrainingSetup, stage: int, offload: bool = False
) -> dict[Kind, Interval]:
    """Estimate DeepSpeed: the sharded states, and flat float32 copies of the shards."""
    size, ranks = setup.model_size, setup.ranks
    gradients = size.gradients
    factor = 0.5 if setup.precision in ("bf16", "fp16") else 1.0
    bucket = min(gradients, 4 * DEEPSPEED_BUCKET) * factor
    shard = gradients / ranks
    memory: dict[Kind, Interval] = {
        "parameters": Interval.exact(size.parameters * factor),
        "gradients": Interval(
            shard * factor, (gradients if stage == 1 else shard) * factor + shard
        ),
        "optimizer": Interval(size.all_states / ranks, size.all_states / ranks + 2 * shard),
        "activations": setup.sharded_activation_memory(1 / ranks),
        "buffers": Interval(0.0, 2.0 * bucket) + Interval.exact(size.buffers),
    }
    if stage == 3:
        memory["parameters"] = Interval(1.0, 2.0) * (size.parameters * factor / ranks)
        gathered = (setup.units.root + setup.units.largest) * factor
        memory["buffers"] += Interval(gathered, 3.0 * gathered)
    if offload:
        on_host: tuple[Kind, ...] = ("optimizer", "gradients")
        for kind in (*on_host, "parameters") if stage == 3 else on_host:
            memory[kind] = Interval(0.0, memory[kind].high if kind == "gradients" else 0.0)
    return memory


def dp_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``dp``: one process; the first GPU has all states and the outputs of the others."""
    memory = ddp_memory(setup)
    memory["buffers"] = Interval.exact(setup.model_size.buffers)
    if not setup.on_gpu:
        memory["activations"] *= setup.ranks  # one process runs the whole batch
    return memory


def mp_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``mp``: each GPU has some layers; without GPUs, one process has everything."""
    if setup.on_gpu:
        return layers_memory(setup)
    memory = ddp_memory(setup)
    memory["buffers"] = Interval.exact(setup.model_size.buffers)
    return memory


ESTIMATORS: dict[str, Callable[[TrainingSetup], dict[Kind, Interval]]] = {
    "ddp": ddp_memory,
    "zero1": zero1_memory,
    "zero2": zero2_memory,
    "fsdp": fsdp_memory,
    "fsdp --cpu-offload": offloaded_fsdp_memory,
    "hsdp": fsdp_memory,
    "tp": tensor_parallel_memory,
    SLICED: sliced_tensor_parallel_memory,
    "fsdp+tp": fsdp_memory,
    "pp": pipeline_parallel_memory,
    "tp+pp": pipeline_parallel_memory,
    "fsdp+pp": sharded_pipeline_memory,
    "fsdp+tp+pp": sharded_pipeline_memory,
    "sp": sequence_parallel_memory,
    "cp": sequence_parallel_memory,
    "deepspeed_stage_1": lambda setup: deepspeed_memory(setup, 1),
    "deepspeed_stage_2": lambda setup: deepspeed_memory(setup, 2),
    "deepspeed_stage_3": lambda setup: deepspeed_memory(setup, 3),
    "deepspeed_stage_2_offload": lambda setup: deepspeed_memory(setup, 2, True),
    "deepspeed_stage_3_offload": lambda setup: deepspeed_memory(setup, 3, True),
    "mp": mp_memory,
    "dp": dp_memory,
}
"""The estimator of each strategy.  ``none`` has none: its memory depends on the cell."""

SOURCES = {
    "ddp": "measured: 16 bytes per parameter, and 4 for gradient buckets",
    "zero1": "ZeRO 1910.02054, stage 1; measured",
    "zero2": "ZeRO 1910.02054, stage 2, with FSDP2; measured",
    "fsdp": "ZeRO 1910.02054, stage 3, with FSDP2; measured",
    "fsdp --cpu-offload": "as fsdp, with FSDP2's CPUOffloadPolicy",
    "hsdp": "as fsdp, on the ranks of one group",
    "tp": "its own plan of the layers, Megatron-LM 1909.08053; measured",
    SLICED: "as tp, and slices between layers, Korthikanti et al. 2205.05198; measured",
    "fsdp+tp": "as fsdp, for parts of layers as under tp; measured",
    "pp": "its own stages, GPipe 1811.06965; measured",
    "tp+pp": "its own stages, of parts of layers as under tp; measured",
    "fsdp+pp": "its own stages, sharded between steps, torchtitan 2410.06511; measured",
    "fsdp+tp+pp": "as fsdp+pp, for parts of layers as under tp",
    "sp": "layers on slices of the sequence, Ulysses 2309.14509; measured",
    "cp": "as sp, with the keys of all ranks; measured",
    "mp": "equal parts of the layers; not measured",
    "dp": "nn.DataParallel",
}
DEEPSPEED_SOURCE = "ZeRO 1910.02054, and DeepSpeed's own estimators; a wide range"


def estimate_memory(name: str, setup: TrainingSetup) -> MemoryByKind | None:
    """Return the memory of one rank for the row ``name``; None if unknown.

    Rows that differ by ``--mesh`` alone have the same estimator.
    """
    estimator = ESTIMATORS.get(name.partition(" --mesh")[0])
    if estimator is None:
        return None
    memory = estimator(setup)
    memory["extra"] = GPU_PROCESS if setup.on_gpu else CPU_PROCESS
    if setup.on_gpu:
        memory["extra"] += Interval(0.0, FRAGMENTATION * total(memory).high)
    return {kind: memory[kind] for kind in KINDS}


def total(memory: MemoryByKind) -> Interval:
    """Return the sum over all kinds of memory."""
    return sum(memory.values(), Interval(0.0, 0.0))


def source_of(name: str) -> str:
    """Return the source of the memory estimate of a row."""
    return SOURCES.get(name.partition(" --mesh")[0], DEEPSPEED_SOURCE)
