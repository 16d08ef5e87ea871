"""Attention whose heads are divided over ranks (DeepSpeed Ulysses, Jacobs et al. 2023, 2309.14509).

Before attention, each rank has all heads of its slice of the sequence; an all-to-all gives it some
heads of the whole sequence, and another one gives the slice back.  Each all-to-all is the transpose
of the other, so gradients of gradients are right as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup


def scatter_heads(tensors: Sequence[Tensor], sizes: list[int], group: ProcessGroup) -> list[Tensor]:
    """Return some heads of the whole sequence for all heads of this rank's slice; collective.

    Args:
        tensors: each of shape (batch, heads, slice, features); the number of ranks divides the
            heads.  They are sent in one message, so they have the same number of features.
        sizes: sizes of the ranks' slices of the sequence.
        group: the ranks.

    Returns:
        Tensors of shape (batch, heads / ranks, sequence, features).
    """
    ranks = group.size()
    by_rank = torch.cat([t.unflatten(1, (ranks, t.shape[1] // ranks)) for t in tensors], 2)
    joined = ScatterHeads.apply(by_rank, sizes, group)  # type: ignore[no-untyped-call]
    return list(joined.split([t.shape[1] // ranks for t in tensors], 1))


def gather_heads(tensor: Tensor, sizes: list[int], group: ProcessGroup) -> Tensor:
    """Return all heads of this rank's slice for some heads of the whole sequence; collective.

    Args:
        tensor: shape (batch, heads / ranks, sequence, features).
        sizes: sizes of the ranks' slices of the sequence.
        group: the ranks.

    Returns:
        A tensor of shape (batch, heads, slice, features).
    """
    by_rank = GatherHeads.apply(tensor, sizes, group)  # type: ignore[no-untyped-call]
    return by_rank.flatten(1, 2)  # type: ignore[no-any-return]


class ScatterHeads(torch.autograd.Function):
    """Makes (batch, ranks, heads, slice, features) to (batch, heads, sequence, features)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: list[int], group: ProcessGroup) -> Tensor:
        """Run the all-to-all."""
        ctx.sizes, ctx.group = sizes, group
        batch, ranks, heads, _, features = tensor.shape
        sent = tensor.movedim(1, 0).contiguous().flatten()
        counts = [batch * heads * size * features for size in sizes]
        received = sent.new_empty(sum(counts))
        dist.all_to_all_single(received, sent, counts, [sent.numel() // ranks] * ranks, group=group)
        shape = (batch, heads, -1, features)
        return torch.cat([part.view(shape) for part in received.split(counts)], 2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Run the all-to-all back."""
        return GatherHeads.apply(grad, ctx.sizes, ctx.group), None, None  # type: ignore[no-untyped-call]


class GatherHeads(torch.autograd.Function):
    """Makes (batch, heads, sequence, features) to (batch, ranks, heads, slice, features)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sizes: list[int], group: ProcessGroup) -> Tensor:
        """Run the all-to-all."""
        ctx.sizes, ctx.group = sizes, group
        batch, heads, _, features = tensor.shape
        parts = [part.flatten() for part in tensor.split(sizes, 2)]
        counts = [part.numel() for part in parts]
        shape = (group.size(), batch, heads, sizes[group.rank()], features)
        received = tensor.new_empty(shape)
        own = [received[0].numel()] * group.size()
        dist.all_to_all_single(received.view(-1), torch.cat(parts), own, counts, group=group)
        return received.movedim(0, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Run the all-to-all back."""
        return ScatterHeads.apply(grad, ctx.sizes, ctx.group), None, None  # type: ignore[no-untyped-call]
