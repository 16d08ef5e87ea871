"""How a strategy is tuned: the options that stand beside its name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True)
class Tuning:
    """Options of training; ``nbmgpu.options.run_options.RunOptions`` are these and more.

    Attributes:
        accumulate: backward passes behind one optimizer step (gradient accumulation).
        precision: what the forward pass computes in; None leaves it to the cell.
        compile: compile the modules with ``torch.compile``.
        clip: largest norm of the gradients at a step; None leaves it to the cell.
        checkpointing: recompute activations in the backward pass.
        sync_batchnorm: batch statistics over the global batch.
        find_unused: accepted for those who know it from DistributedDataParallel.
        static_graph: every backward pass reaches the same parameters.
        bucket_views: gradients are views of the buckets in which they travel.
        compress: the dtype in which gradients travel; None for their own.
        fsdp_units: names of module classes, each of which is sharded as a unit of its own.
        cpu_offload: parameters and optimizer states lie in the memory of the host.
        deepspeed_config: path of a DeepSpeed configuration in JSON.
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

    @staticmethod
    def among(options: Mapping[str, Any]) -> Tuning:
        """Return the tuning among ``options``, the fields of a ``RunOptions`` or its JSON."""
        values = {n: options[n] for n in FIELDS if n in options}
        if "fsdp_units" in values:
            values["fsdp_units"] = tuple(values["fsdp_units"])
        return Tuning(**values)

    def given(self) -> list[str]:
        """Return the fields that differ from their default, in order."""
        default = Tuning()
        return [name for name in FIELDS if getattr(self, name) != getattr(default, name)]


FIELDS = tuple(f.name for f in dataclasses.fields(Tuning))
