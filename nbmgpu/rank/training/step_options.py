"""Options that change the cell's optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass

from .gradient_accumulation import GradientAccumulation
from .step_limit import StepLimit


@dataclass(frozen=True)
class StepOptions:
    """Options that change the cell's optimizer steps.

    Attributes:
        accumulation: how many batches each step takes.
        limit: how many steps there are.
        clip_norm: norm to which gradients are clipped before each step; None for no clipping.
    """

    accumulation: GradientAccumulation
    limit: StepLimit
    clip_norm: float | None
