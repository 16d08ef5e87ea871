"""Everything that the memory of a rank depends on, and the kinds of memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from nbmgpu.strategies.mesh_sizes import DP, FSDP, data_parallel_sizes

from .activations import HIGH_MARGIN
from .interval import Interval, maximum

if TYPE_CHECKING:
    from nbmgpu.strategies.strategy_options import Precision

    from .activations import Activations
    from .fsdp_units import UnitSizes
    from .model_size import ModelSize

Kind = Literal["parameters", "gradients", "optimizer", "activations", "buffers", "extra"]

KINDS: dict[Kind, str] = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "activations": "activations and intermediate results of the step",
    "buffers": "model buffers, gradient buckets and gathered parameters",
    "extra": "the process itself, and allocator overhead",
}
"""Labels of the kinds of memory, in display order."""

MemoryByKind = Mapping[Kind, Interval]


@dataclass(frozen=True)
class TrainingSetup:
    """Everything that the memory of a rank depends on, besides the strategy.

    Attributes:
        model_size: sizes of the model and its optimizer states.
        units: sizes of the units that FSDP2 gathers.
        activations: memory of one rank's step; None if unknown.
        ranks: number of ranks.
        on_gpu: whether each rank has a GPU.
        accumulate: backward passes per optimizer step.
        precision: as in ``--precision``.
        mesh: sizes of the strategy's mesh; empty if all ranks are data parallel.
        held: fraction of the parameters that a rank computes with; see ``ModelParts``.
        kept: fraction of the parameters that a rank has between steps under ``fsdp+pp``.
        largest_block: bytes of the largest layer that runs on slices of a sequence.
    """

    model_size: ModelSize
    units: UnitSizes
    activations: Activations | None
    ranks: int
    on_gpu: bool
    accumulate: int = 1
    precision: Precision | None = None
    mesh: Mapping[str, int] = field(default_factory=dict)
    held: float = 1.0
    kept: float = 1.0
    largest_block: int = 0

    @property
    def gather_factor(self) -> float:
        """Size of a gathered parameter relative to float32: FSDP2 gathers bf16 under bf16."""
        return 0.5 if self.precision == "bf16" else 1.0

    @property
    def shard_ranks(self) -> int:
        """Number of ranks over which FSDP2 shards."""
        return self.mesh.get(FSDP, self.ranks)

    @property
    def data_parallel_ranks(self) -> int:
        """Number of shards of a batch."""
        sizes = data_parallel_sizes(self.mesh)
        return math.prod(sizes.values()) if self.mesh else self.ranks

    @property
    def replicas(self) -> int:
        """Number of ranks with the same part of the model, which average its gradients."""
        return self.mesh.get(DP, 1) if self.mesh else self.ranks

    @property
    def stages(self) -> int:
        """Number of ranks that have different layers."""
        return self.mesh.get("pp", 1)

    @property
    def gathered(self) -> float:
        """Fraction of the parameters that a rank gathers for a step under ``fsdp+pp``."""
        ranks = self.shard_ranks
        return 0.0 if ranks == 1 else (self.held - self.kept) * ranks / (ranks - 1)

    def activation_memory(
        self, gradients: float, fraction: float = 1.0, largest: float = 1.0
    ) -> Interval:
        """Return activations and temporaries of the optimizer step, besides full gradients.

        Args:
            gradients: bytes of gradients, which are counted separately.
            fraction: fraction of the parameters that this rank's optimizer updates.
            largest: fraction of the largest parameter on this rank.
        """
        step = self._optimizer_temporaries(fraction, largest)
        acts = self.activations
        if acts is None:
            return step
        # A cell may clear gradients before its forward pass, or after it.
        passes = Interval(acts.peak_with_gradients.low - gradients, acts.peak.high)
        if self.accumulate > 1:
            passes = Interval(acts.peak.low - self.model_size.largest * largest, acts.peak.high)
        passes = Interval(min(passes.low, passes.high), passes.high)
        return maximum(passes, step, Interval(0.0, 0.0))

    def sharded_activation_memory(self, fraction: float) -> Interval:
        """Return the same where gradients are sharded.

        The lower bound is the memory at the start of the backward pass.
        """
        acts = self.activations
        step = self._optimizer_temporaries(fraction)
        if acts is None:
            return step
        # FSDP2 and DeepSpeed compute the whole pass in half precision, autocast only most of it.
        low = acts.uncast_saved.low * (0.85 if self.gather_factor < 1 else 1.0)
        return Interval(low, max(step.high, acts.uncast_peak.high))

    def _optimizer_temporaries(self, fraction: float, largest: float = 1.0) -> Interval:
        # On GPUs torch updates all parameters at once (foreach) and needs a temporary for each;
        # on CPUs it updates them one by one.
        gradients = self.model_size.gradients
        size = gradients * fraction if self.on_gpu else 3.0 * self.model_size.largest * largest
        return Interval(0.0, size * HIGH_MARGIN)
