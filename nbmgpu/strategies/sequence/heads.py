"""Attention whose heads are divided over ranks (DeepSpeed Ulysses, Jacobs et al. 2023, 2309.14509).

Before attention, each rank has all heads of its slice of the sequence; an all-to-all gives it some
heads of the whole sequence, and another one gives the slice back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.strategies.sharding.collectives import reshard_parts
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout


def scatter_heads(tensors: Sequence[Tensor], length: int, group: ProcessGroup) -> list[Tensor]:
    """Return some heads of the whole sequence for all heads of this rank's slice; collective.

    Args:
        tensors: each of shape (batch, heads, slice, features); the number of ranks divides the
            heads.  They are sent in one message, so they have the same number of features.
        length: of the whole sequence.
        group: the ranks.

    Returns:
        Tensors of shape (batch, heads / ranks, sequence, features).
    """
    ranks = group.size()
    # Shape (batch, ranks, heads / ranks of all tensors, slice, features).
    by_rank = torch.cat([t.unflatten(1, (ranks, t.shape[1] // ranks)) for t in tensors], 2)
    joined = reshard_parts(by_rank, _layout(by_rank, {3: length}, 3, group), 1).squeeze(1)
    return list(joined.split([t.shape[1] // ranks for t in tensors], 1))


def gather_heads(tensor: Tensor, group: ProcessGroup) -> Tensor:
    """Return all heads of this rank's slice for some heads of the whole sequence; collective.

    Args:
        tensor: shape (batch, heads / ranks, sequence, features).
        group: the ranks.

    Returns:
        A tensor of shape (batch, heads, slice, features).
    """
    of_rank = tensor.unsqueeze(1)
    layout = _layout(of_rank, {1: group.size()}, 1, group)
    return reshard_parts(of_rank, layout, 3).flatten(1, 2)


def _layout(part: Tensor, whole: dict[int, int], dim: int, group: ProcessGroup) -> ShardLayout:
    shape = [whole.get(d, size) for d, size in enumerate(part.shape)]
    return ShardLayout(torch.Size(shape), dim, group)
