"""Estimates the memory of a rank under ``tp``, ``pp`` and its meshes, ``mp``, ``sp`` and ``cp``.

The fraction of the parameters that a rank holds is that of the strategies' own plans, see
``model_parts``, and so are activations: a fake step counts tensors inside of blocks (``tp``),
layers (``sp``, ``cp``) or stages (``pp``) in part.  Under ``pp`` all microbatches of a batch are in
flight (GPipe, 1811.06965), so a rank holds its own layers' activations of the whole batch.
"""

from __future__ import annotations

from .interval import Interval
from .training_setup import Kind, TrainingSetup

MESSAGES = 2.0
"""Copies of the largest message besides the tensor itself: the parts that are gathered or summed,
and what they are gathered into."""

SLICED_MESSAGES = 8.0
"""Further copies of the largest message where layers run on slices: what a block takes is gathered,
also for its backward pass, and the head exchanges its features for those of a slice."""

EXCHANGED = 12.0
"""Copies of a slice while attention exchanges heads: queries, keys and values, joined and sorted by
rank before the all-to-all, and as received and joined again after it."""


def tensor_parallel_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``tp``: parts of layers, and activations of all layers."""
    return _parts_memory(setup, setup.held)


def sliced_tensor_parallel_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``tp --sequence-parallel``: parts of layers, and slices of the sequence between."""
    memory = _parts_memory(setup, setup.held)
    acts = setup.activations
    message = 0.0 if acts is None else acts.largest_message
    memory["buffers"] += Interval(0.0, SLICED_MESSAGES * message)
    return memory


def pipeline_parallel_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``pp`` and ``tp+pp``: the largest stage, and parts of modules outside of stages."""
    memory = _parts_memory(setup, 1.0)
    acts = memory["activations"]
    # Intermediate results of a layer are those of a microbatch only.
    memory["activations"] = Interval(0.7 * acts.low, acts.high)
    return memory


def sharded_pipeline_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``fsdp+pp`` and ``fsdp+tp+pp``: shards, and during a step all of a stage.

    A stage's parameters are gathered when it first runs.  Its gradients are summed over
    microbatches, and reduced at the end of its backward pass.
    """
    size, gathered = setup.model_size, setup.gathered
    memory = pipeline_parallel_memory(setup)
    # Without gradients from earlier passes, all of the stage's are there before any is sharded.
    first = setup.held - setup.kept if setup.accumulate == 1 else 0.0
    gradients = Interval(size.gradients * first, size.gradients * gathered)
    acts = setup.activations
    message = 0.0 if acts is None else acts.largest_message
    # Ranks with other samples average the gradients of modules outside of stages in buckets.
    buckets = size.gradients * (setup.held - gathered) if setup.data_parallel_ranks > 1 else 0.0
    fixed = size.buffers + buckets + size.parameters * gathered
    return memory | {
        "parameters": Interval.exact(size.parameters * setup.kept),
        "gradients": Interval.exact(size.gradients * setup.kept),
        "optimizer": Interval.exact(size.all_states * setup.kept),
        "buffers": Interval.exact(fixed) + gradients + Interval(0.0, MESSAGES * message),
    }


def layers_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``mp``, whose GPUs run their layers on whole batches, one after another."""
    return _parts_memory(setup, 1.0)


def _parts_memory(setup: TrainingSetup, largest: float) -> dict[Kind, Interval]:
    """Estimate ranks that hold parts of a model.

    Args:
        setup: what is trained, and on what.
        largest: fraction of the largest parameter on a rank.
    """
    size = setup.model_size
    gradients = size.gradients * setup.held
    acts = setup.activations
    message = 0.0 if acts is None else acts.largest_message
    buckets = gradients if setup.replicas > 1 else 0.0
    return {
        "parameters": Interval.exact(size.parameters * setup.held),
        "gradients": Interval.exact(gradients),
        "optimizer": Interval.exact(size.all_states * setup.held),
        "activations": setup.activation_memory(gradients, setup.kept, largest),
        "buffers": Interval.exact(size.buffers + buckets) + Interval(0.0, MESSAGES * message),
    }


def sequence_parallel_memory(setup: TrainingSetup) -> dict[Kind, Interval]:
    """Estimate ``sp`` and ``cp``: all parameters, and activations of slices of the sequence."""
    size = setup.model_size
    acts = setup.activations
    slice_size = (
        0.0 if acts is None else acts.largest_message * setup.data_parallel_ranks / setup.ranks
    )
    # A layer's gradients are summed in one message, which is a copy of them.
    extra = Interval(0.0, setup.largest_block + EXCHANGED * slice_size)
    buckets = size.gradients if setup.replicas > 1 else 0
    return {
        "parameters": Interval.exact(size.parameters),
        "gradients": Interval.exact(size.gradients),
        "optimizer": Interval.exact(size.all_states),
        "activations": setup.activation_memory(size.gradients),
        "buffers": Interval.exact(size.buffers + buckets) + extra,
    }
