"""Differentiable collectives over the ranks that hold the parts of one model.

These ranks hold the same samples.  A tensor that is *replicated* has the same values on all of
them, and so has its gradient; one that is *split* has a part of a dimension on each; the values of
a *partial* one add up.  Each function below is the transpose of another one, so gradients of
gradients are right as well.  ``replicate_input`` and ``sum_partials`` are f and g of Megatron-LM
(Shoeybi et al. 2019, 1909.08053).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.sharding.tensor_shard import TensorLayout


def replicate_input(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return a replicated ``tensor`` for computations that are split: gradients add up."""
    return ReplicateInput.apply(tensor, group)  # type: ignore[no-any-return, no-untyped-call]


def sum_partials(tensor: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the sum of a partial ``tensor`` over the ranks, which is replicated."""
    return SumPartials.apply(tensor, group)  # type: ignore[no-any-return, no-untyped-call]


def gather_parts(tensor: Tensor, layout: TensorLayout) -> Tensor:
    """Return the full tensor, replicated, of which ``tensor`` is this rank's part."""
    return GatherParts.apply(tensor, layout)  # type: ignore[no-any-return, no-untyped-call]


def split_parts(tensor: Tensor, layout: TensorLayout) -> Tensor:
    """Return this rank's part of a replicated ``tensor``."""
    return SplitParts.apply(tensor, layout)  # type: ignore[no-any-return, no-untyped-call]


class ReplicateInput(torch.autograd.Function):
    """Keeps a replicated tensor, and sums its gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
        """Run the collective."""
        ctx.group = group
        ctx.set_materialize_grads(False)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        """Run the transposed collective on the gradient, if there is one."""
        return None if grad is None else sum_partials(grad, ctx.group), None


class SumPartials(torch.autograd.Function):
    """Sums partial tensors, and keeps their gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup | None) -> Tensor:
        """Run the collective."""
        ctx.group = group
        ctx.set_materialize_grads(False)
        total = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        """Run the transposed collective on the gradient, if there is one."""
        return None if grad is None else replicate_input(grad, ctx.group), None


class GatherParts(torch.autograd.Function):
    """Gathers parts, and splits their gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layout: TensorLayout) -> Tensor:
        """Run the collective."""
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        return layout.gather(tensor, tensor.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        """Run the transposed collective on the gradient, if there is one."""
        return None if grad is None else split_parts(grad, ctx.layout), None


class SplitParts(torch.autograd.Function):
    """Splits a tensor, and gathers its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layout: TensorLayout) -> Tensor:
        """Run the collective."""
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        return layout.part_of(tensor).contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        """Run the transposed collective on the gradient, if there is one."""
        return None if grad is None else gather_parts(grad, ctx.layout), None
