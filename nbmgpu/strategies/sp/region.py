"""Operations inside of a block that need more than this rank's slice of the sequence.

Attention sees the whole sequence, and dropout draws the numbers of the whole tensor, so that each
position has those of one device.  Everything else inside of a block acts on each position by
itself; the trial of a block finds out whether that is so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.sharding.tensor_shard import ShardLayout
from nbmgpu.strategies.tp.collectives import gather_parts, replicate_input, split_parts

from .heads import gather_heads, scatter_heads

Attention = Callable[..., Tensor]
Exchange = Literal["heads", "keys"]
"""How ranks share attention: each has some heads, or its queries and the keys of all ranks."""


class NotSplittableError(Exception):
    """An operation in a block cannot run on slices of the sequence."""


@dataclass(frozen=True)
class Region:
    """The body of a block, while each rank has a slice of the sequence.

    Attributes:
        dim: dimension of the sequence in the arguments of the block.
        length: length of the whole sequence.
        batch: number of sequences.
        group: the ranks, in the order of their slices.
        exchange: how ranks share attention.
    """

    dim: int
    length: int
    batch: int
    group: ProcessGroup
    exchange: Exchange

    current: ClassVar[Region | None] = None
    """The region that runs now in this process."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let the body be the region."""
        before, Region.current = Region.current, self
        try:
            yield
        finally:
            Region.current = before

    @cached_property
    def sizes(self) -> list[int]:
        """Sizes of the ranks' slices."""
        ranks = self.group.size()
        chunk = -(-self.length // ranks)
        return [max(min(chunk, self.length - rank * chunk), 0) for rank in range(ranks)]

    @property
    def start(self) -> int:
        """Position of this rank's first element in the sequence."""
        return sum(self.sizes[: self.group.rank()])

    @property
    def size(self) -> int:
        """Size of this rank's slice."""
        return self.sizes[self.group.rank()]

    def layout(self, shape: torch.Size, dim: int) -> ShardLayout:
        """Return how a whole tensor of ``shape`` is split along ``dim``."""
        return ShardLayout(shape, dim, self.group)

    def layout_of_slice(self, part: Tensor, dim: int) -> ShardLayout:
        """Return how the tensor is split of which ``part`` is this rank's slice."""
        shape = list(part.shape)
        shape[dim] = self.length
        return self.layout(torch.Size(shape), dim % part.dim())

    def gather(self, part: Tensor, dim: int) -> Tensor:
        """Return the whole tensor, for computations that are the same on all ranks."""
        return gather_parts(part, self.layout_of_slice(part, dim))

    def attention(
        self,
        plain: Attention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        options: dict[str, Any],
    ) -> Tensor:
        """Run ``scaled_dot_product_attention`` with this rank's slices of its arguments.

        Args:
            plain: the function itself.
            query, key, value: shape (..., slice, features), usually (batch, heads, slice,
                features); keys and values may be whole in cross-attention.
            attn_mask: for the whole sequence, or with a slice of the keys.
            dropout_p, is_causal, options: the other arguments.

        Returns:
            This rank's slice of the output.

        Raises:
            NotSplittableError: the shape of the mask is that of neither.
        """
        if query.shape[-2] != self.size:
            return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
        keys_are_split = key.shape[-2] == self.size
        mask = self._whole_mask(attn_mask, key, keys_are_split)
        if dropout_p:  # one device draws for all heads and positions at once
            query = self.gather(query, -2)
            if keys_are_split:
                key, value = self.gather(key, -2), self.gather(value, -2)
            output = plain(query, key, value, mask, dropout_p, is_causal, **options)
            return split_parts(output, self.layout(output.shape, output.dim() - 2))
        if keys_are_split and self._heads_can_be_divided(query):
            return self._with_some_heads(plain, query, key, value, mask, is_causal, options)
        return self._with_own_queries(
            plain, query, key, value, mask, is_causal, keys_are_split, options
        )

    def _whole_mask(self, mask: Tensor | None, key: Tensor, keys_are_split: bool) -> Tensor | None:
        """Return the mask for whole sequences."""
        if mask is None:
            return None
        rows = mask.shape[-2]
        columns = self.length if keys_are_split else key.shape[-2]
        if rows == 1 and keys_are_split and mask.shape[-1] == self.size:
            return self.gather(mask, -1)  # padding
        if rows not in (1, self.length) or mask.shape[-1] not in (1, columns):
            raise NotSplittableError(
                f"an attention mask of shape {tuple(mask.shape)} is made inside of the layer"
            )
        return mask

    def _heads_can_be_divided(self, query: Tensor) -> bool:
        return (
            self.exchange == "heads"
            and query.dim() == 4
            and query.shape[1] % self.group.size() == 0
        )

    def _with_some_heads(
        self,
        plain: Attention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        options: dict[str, Any],
    ) -> Tensor:
        """Attend with some of the heads, to the whole sequence."""
        ranks, heads = self.group.size(), query.shape[1]
        if key.shape[1] % ranks:  # fewer heads of keys than ranks (grouped-query attention)
            key, value = (t.repeat_interleave(heads // t.shape[1], 1) for t in (key, value))
        if value.shape[-1] == query.shape[-1]:
            query, key, value = scatter_heads((query, key, value), self.sizes, self.group)
        else:
            query, key = scatter_heads((query, key), self.sizes, self.group)
            (value,) = scatter_heads((value,), self.sizes, self.group)
        if mask is not None:
            mask = replicate_input(mask, self.group) if mask.requires_grad else mask
            if mask.dim() > 2 and mask.shape[-3] == heads > 1:
                mask = mask.chunk(ranks, -3)[self.group.rank()]
        output = plain(query, key, value, mask, 0.0, is_causal, **options)
        return gather_heads(output, self.sizes, self.group)

    def _with_own_queries(
        self,
        plain: Attention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        keys_are_split: bool,
        options: dict[str, Any],
    ) -> Tensor:
        """Attend with the queries of this slice, to keys that are gathered from all ranks."""
        end = self.start + self.size
        if keys_are_split:
            # Each rank uses the keys for its own queries: their gradients add up.
            key = replicate_input(self.gather(key, -2), self.group)
            value = replicate_input(self.gather(value, -2), self.group)
        if mask is not None:
            mask = replicate_input(mask, self.group) if mask.requires_grad else mask
            mask = mask if mask.shape[-2] == 1 else mask[..., self.start : end, :]
        elif is_causal:
            positions = torch.arange(key.shape[-2], device=query.device)
            mask = positions <= positions[self.start : end].unsqueeze(-1)
        return plain(query, key, value, mask, 0.0, **options)

    def dropout(
        self, plain: Callable[..., Tensor], input: Tensor, p: float, inplace: bool
    ) -> Tensor:
        """Run ``dropout`` in training, with the random numbers of the whole tensor."""
        shape = list(input.shape)
        flattened = input.dim() == 2 and shape[0] == self.size * self.batch  # all positions in rows
        if flattened:
            sizes = (self.batch, self.size) if self.dim else (self.size, self.batch)
            part = input.unflatten(0, sizes)
        elif input.dim() > self.dim and shape[self.dim] == self.size:
            part = input
        else:
            return plain(input, p, True, inplace)
        layout = self.layout_of_slice(part, self.dim)
        kept = layout.part_of(plain(_ones(part, layout.shape), p, True, True))
        kept = kept.flatten(0, 1) if flattened else kept
        return input.mul_(kept) if inplace else input * kept


def _ones(like: Tensor, shape: torch.Size) -> Tensor:
    """Return ones whose dimensions are in the same order in memory: numbers are drawn in it."""
    order = sorted(range(like.dim()), key=like.stride, reverse=True)
    ones = torch.ones([shape[dim] for dim in order], dtype=like.dtype, device=like.device)
    return ones.permute([order.index(dim) for dim in range(like.dim())])


def patch_functions(patches: PatchStack) -> None:
    """Let attention and dropout act on the region that runs."""

    def attention(plain: Attention) -> Attention:
        def scaled_dot_product_attention(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attn_mask: Tensor | None = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            **options: Any,
        ) -> Tensor:
            region = Region.current
            if region is None:
                return plain(query, key, value, attn_mask, dropout_p, is_causal, **options)
            return region.attention(
                plain, query, key, value, attn_mask, dropout_p, is_causal, options
            )

        return scaled_dot_product_attention

    def dropout(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def dropout(
            input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Tensor:
            region = Region.current
            if region is None or not training or not p:
                return plain(input, p, training, inplace)
            return region.dropout(plain, input, p, inplace)

        return dropout

    patches.wrap("torch.nn.functional.scaled_dot_product_attention", attention)
    patches.wrap("torch.nn.functional.dropout", dropout)
