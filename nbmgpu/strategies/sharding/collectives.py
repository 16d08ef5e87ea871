"""Differentiable collectives over the ranks that hold the parts of one model.

These ranks hold the same samples.  A tensor that is *replicated* has the same values on all of
them, and so has its gradient; one that is *split* has a part of a dimension on each; the values of
a *partial* one add up.  Each function below is the transpose of another one, so gradients of
gradients are right as well.  ``replicate_input`` and ``sum_partials`` are f and g of Megatron-LM
(Shoeybi et al. 2019, 1909.08053), ``gather_input`` and ``scatter_partials`` its g and g-bar with
sequence parallelism (Korthikanti et al. 2022, 2205.05198).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.collectives import all_reduce

from .chunks import chunk_sizes
from .tensor_shard import ShardLayout, TensorLayout


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


def gather_input(tensor: Tensor, layout: ShardLayout) -> Tensor:
    """Return the full tensor of a split one for computations that are split: gradients add up."""
    return GatherInput.apply(tensor, layout)  # type: ignore[no-any-return, no-untyped-call]


def scatter_partials(tensor: Tensor, layout: ShardLayout) -> Tensor:
    """Return this rank's part of the sum of a partial ``tensor``, whose layout this is."""
    return ScatterPartials.apply(tensor, layout)  # type: ignore[no-any-return, no-untyped-call]


def reshard_parts(tensor: Tensor, layout: ShardLayout, dim: int) -> Tensor:
    """Return this rank's part along ``dim`` for one that is split by ``layout``: an all-to-all."""
    return ReshardParts.apply(tensor, layout, dim)  # type: ignore[no-any-return, no-untyped-call]


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
        all_reduce(total, group).wait()
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


class GatherInput(torch.autograd.Function):
    """Gathers parts, and sums and splits their gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layout: ShardLayout) -> Tensor:
        """Run the collective."""
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        return layout.gather(tensor, tensor.device)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        """Run the transposed collective on the gradient, if there is one."""
        return None if grad is None else scatter_partials(grad, ctx.layout), None


class ScatterPartials(torch.autograd.Function):
    """Sums and splits partial tensors, and gathers their gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layout: ShardLayout) -> Tensor:
        """Run the collective."""
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        part = layout.reduce_scatter(tensor)
        return part.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:
        """Run the transposed collective on the gradient, if there is one."""
        return None if grad is None else gather_input(grad, ctx.layout), None


class ReshardParts(torch.autograd.Function):
    """Makes parts along one dimension to parts along another one."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, layout: ShardLayout, dim: int) -> Tensor:
        """Run the all-to-all."""
        ctx.layouts = layout, ShardLayout(layout.shape, dim, layout.group)
        ctx.set_materialize_grads(False)
        ranks, rank = dist.get_world_size(layout.group), dist.get_rank(layout.group)
        before = chunk_sizes(layout.shape[layout.dim], ranks)
        after = chunk_sizes(layout.shape[dim], ranks)
        shape = list(layout.shape)
        shape[dim] = after[rank]
        per_index = math.prod(shape[: layout.dim] + shape[layout.dim + 1 :])
        counts = [size * per_index for size in before]
        pieces = tensor.split(after, dim)
        sizes = [piece.numel() for piece in pieces]
        sent = tensor.new_empty(tensor.numel())
        for piece, place in zip(pieces, sent.split(sizes), strict=True):
            place.view(piece.shape).copy_(piece)
        received = tensor.new_empty(sum(counts))
        dist.all_to_all_single(received, sent, counts, sizes, group=layout.group)
        del sent
        part = tensor.new_empty(shape)
        for piece, values in zip(
            part.split(before, layout.dim), received.split(counts), strict=True
        ):
            piece.copy_(values.view(piece.shape))
        return part

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None, None]:
        """Run the all-to-all back."""
        before, after = ctx.layouts
        return None if grad is None else reshard_parts(grad, after, before.dim), None, None
