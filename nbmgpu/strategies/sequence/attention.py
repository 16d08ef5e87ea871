"""Attention inside of a region: queries of the slice attend to the keys of the whole sequence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nbmgpu.patches import PatchStack
from nbmgpu.strategies.sharding.collectives import replicate_input, split_parts

from .heads import gather_heads, scatter_heads
from .region import NotSplittableError, Region


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of ``scaled_dot_product_attention``.

    Attributes:
        plain: the function itself.
        query, key, value: shape (..., positions, features), usually (batch, heads, positions,
            features).
        mask: ``attn_mask``.
        dropout_p, is_causal: the arguments of these names.
        options: the other ones.
    """

    plain: Callable[..., Tensor]
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def run(self) -> Tensor:
        """Return what the function itself does."""
        return self.plain(
            self.query, self.key, self.value, self.mask, self.dropout_p, self.is_causal,
            **self.options,
        )  # fmt: skip


def attend_in_region(call: AttentionCall) -> Tensor:
    """Return this rank's slice of the output in a region, and the output outside."""
    return call.run() if Region.current is None else attend(Region.current, call)


def attend(region: Region, call: AttentionCall) -> Tensor:
    """Return this rank's slice of the output.

    Raises:
        NotSplittableError: the mask is neither for whole sequences, nor a slice of the keys.
    """
    if region.exchange is None or not region.is_split(call.query.shape[-2]):
        return call.run()
    keys_are_split = region.is_split(call.key.shape[-2])
    call = replace(call, mask=_whole_mask(region, call, keys_are_split))
    if call.dropout_p:  # one device draws for all heads and positions at once
        return _with_everything(region, call, keys_are_split)
    if keys_are_split and _heads_can_be_divided(region, call):
        return _with_some_heads(region, call)
    return _with_own_queries(region, call, keys_are_split)


def _whole_mask(region: Region, call: AttentionCall, keys_are_split: bool) -> Tensor | None:
    """Return the mask for whole sequences."""
    mask = call.mask
    if mask is None:
        return None
    rows, columns = mask.shape[-2:]
    if rows == 1 and keys_are_split and columns == region.size:
        return region.gather(mask, -1)  # padding
    expected = region.length if keys_are_split else call.key.shape[-2]
    if rows not in (1, region.length) or columns not in (1, expected):
        raise NotSplittableError(
            f"an attention mask of shape {tuple(mask.shape)} is made inside of the layer"
        )
    return replicate_input(mask, region.group) if mask.requires_grad else mask


def _heads_can_be_divided(region: Region, call: AttentionCall) -> bool:
    ranks, query = region.group.size(), call.query
    return region.exchange == "heads" and query.dim() == 4 and query.shape[1] % ranks == 0


def _with_everything(region: Region, call: AttentionCall, keys_are_split: bool) -> Tensor:
    """Attend as one device does, and return the slice."""
    query, key, value = region.gather(call.query, -2), call.key, call.value
    if keys_are_split:
        key, value = region.gather(key, -2), region.gather(value, -2)
    output = replace(call, query=query, key=key, value=value).run()
    return split_parts(output, region.layout(output.shape, output.dim() - 2))


def _with_some_heads(region: Region, call: AttentionCall) -> Tensor:
    """Attend with some of the heads, to the whole sequence (2309.14509)."""
    query, key, value, mask = call.query, call.key, call.value, call.mask
    ranks, heads, length, group = region.group.size(), query.shape[1], region.length, region.group
    if key.shape[1] % ranks:  # fewer heads of keys than ranks (grouped-query attention)
        key, value = (t.repeat_interleave(heads // t.shape[1], 1) for t in (key, value))
    if value.shape[-1] == query.shape[-1]:
        query, key, value = scatter_heads((query, key, value), length, group)
    else:
        query, key = scatter_heads((query, key), length, group)
        (value,) = scatter_heads((value,), length, group)
    if mask is not None and mask.dim() > 2 and mask.shape[-3] == heads > 1:
        mask = mask.chunk(ranks, -3)[group.rank()]
    output = replace(call, query=query, key=key, value=value, mask=mask).run()
    return gather_heads(output, group)


def _with_own_queries(region: Region, call: AttentionCall, keys_are_split: bool) -> Tensor:
    """Attend with the queries of this slice, to keys that are gathered from all ranks."""
    key, value, mask = call.key, call.value, call.mask
    rows = slice(region.start, region.start + region.size)
    if keys_are_split:
        # Each rank uses the keys for its own queries: their gradients add up.
        key = replicate_input(region.gather(key, -2), region.group)
        value = replicate_input(region.gather(value, -2), region.group)
    if mask is not None and mask.shape[-2] > 1:
        mask = mask[..., rows, :]
    elif call.is_causal:
        mask = _causal_mask(rows.start, rows.stop, key.shape[-2], key.device, key.dtype)
    return replace(call, key=key, value=value, mask=mask, is_causal=False).run()


@functools.lru_cache(maxsize=2)
def _causal_mask(
    start: int, end: int, keys: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return the rows from ``start`` to ``end`` of a causal mask, one for all layers."""
    mask = torch.full((end - start, keys), float("-inf"), device=device, dtype=dtype)
    return mask.triu_(start + 1)


def patch_attention(patches: PatchStack, run: Callable[[AttentionCall], Tensor]) -> None:
    """Let ``run`` compute each call of ``scaled_dot_product_attention``."""

    def wrap(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def scaled_dot_product_attention(
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attn_mask: Tensor | None = None,
            dropout_p: float = 0.0,
            is_causal: bool = False,
            **options: Any,
        ) -> Tensor:
            return run(
                AttentionCall(plain, query, key, value, attn_mask, dropout_p, is_causal, options)
            )

        return scaled_dot_product_attention

    patches.wrap("torch.nn.functional.scaled_dot_product_attention", wrap)
