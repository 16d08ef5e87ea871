"""The options that a strategy takes, besides its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class ModelParallelOptions:
    """Options of strategies whose ranks hold parts of one model.

    Attributes:
        mesh: sizes of the device mesh by dimension, such as ``("dp=2", "tp=2")``.
        microbatches: number of parts of a batch in a pipeline; None to choose it.
        schedule: order of a pipeline's stages.
        split_points: names of the layers that begin a pipeline's stages, except the first.
        balance: what a pipeline's stages have about the same of.
        tp_plan: how layers are split, such as ``("layers.*.fc1=colwise",)``; if empty, it is found.
        sequence_parallel: between split layers, ranks have slices of the sequence.
    """

    mesh: tuple[str, ...] = ()
    microbatches: int | None = None
    schedule: Literal["gpipe", "interleaved"] = "gpipe"
    split_points: tuple[str, ...] = ()
    balance: Literal["parameters", "time"] = "parameters"
    tp_plan: tuple[str, ...] = ()
    sequence_parallel: bool = False


@dataclass(frozen=True)
class StrategyOptions(ModelParallelOptions):
    """Options of training; ``nbmgpu.options.run_options.RunOptions`` extends them.

    Attributes:
        accumulate: backward passes per optimizer step (gradient accumulation).
        precision: dtype of the forward pass; None leaves it to the cell.
        compile: compile the modules with ``torch.compile``.
        clip: largest norm of the gradients at a step; None leaves it to the cell.
        checkpointing: recompute activations in the backward pass.
        sync_batchnorm: compute batch statistics over the global batch.
        find_unused: has no effect; accepted because DistributedDataParallel has this option.
        static_graph: every backward pass reaches the same parameters.
        bucket_views: gradients are views of the buckets in which they are reduced.
        compress: dtype in which gradients are communicated; None for their own.
        fsdp_units: names of module classes, each instance of which is sharded as one unit.
        cpu_offload: keep parameters and optimizer states in host memory.
        deepspeed_config: path of a DeepSpeed configuration in JSON.
        exact: ``always`` to let the cell see whole batches, so that all numbers are those of one
            device; ``auto`` to do so where they would differ, if the strategy can.
    """

    accumulate: int = 1
    precision: Precision | None = None
    compile: bool = False
    clip: float | None = None
    checkpointing: bool = False
    sync_batchnorm: bool = False
    find_unused: bool = False
    static_graph: bool = False
    bucket_views: bool = False
    compress: Literal["bf16", "fp16"] | None = None
    fsdp_units: tuple[str, ...] = ()
    cpu_offload: bool = False
    deepspeed_config: str | None = None
    exact: Literal["auto", "always", "never"] = "auto"

    @staticmethod
    def from_mapping(options: Mapping[str, Any]) -> StrategyOptions:
        """Select the strategy's options from the fields of a ``RunOptions`` or its JSON."""
        values = {n: options[n] for n in FIELDS if n in options}
        for name in ("fsdp_units", "mesh", "split_points", "tp_plan"):
            if name in values:
                values[name] = tuple(values[name])
        return StrategyOptions(**values)

    def non_default(self) -> list[str]:
        """Return the names of the fields that differ from their default, in order."""
        default = StrategyOptions()
        return [name for name in FIELDS if getattr(self, name) != getattr(default, name)]


FIELDS = tuple(f.name for f in dataclasses.fields(StrategyOptions))
