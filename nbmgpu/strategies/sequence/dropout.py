"""Dropout inside of a region: each position has the random numbers of one device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.overrides import wrap_torch_function

from nbmgpu.patches import PatchStack

from .region import Region


def dropout_on_slice(
    region: Region, plain: Callable[..., Tensor], input: Tensor, p: float, inplace: bool
) -> Tensor:
    """Return this rank's slice of what ``dropout`` does to the whole tensor in training.

    Args:
        region: the slices.
        plain: the function itself.
        input: a slice; or the rows of all positions in it, shape (batch * slice, features).
        p, inplace: arguments of the function.
    """
    rows = region.size * region.batch
    flattened = input.dim() == 2 and input.shape[0] == rows and region.is_split(region.size)
    if flattened:
        part = input.unflatten(0, (region.batch, -1) if region.dim else (-1, region.batch))
    elif input.dim() > region.dim and region.is_split(input.shape[region.dim]):
        part = input
    else:
        return plain(input, p, True, inplace)
    layout = region.layout_of_slice(part, region.dim)
    # Autograd keeps the slice alone, not a view of the whole.
    kept = layout.part_of(plain(_ones(part, layout.shape), p, True, True)).clone()
    kept = kept.flatten(0, 1) if flattened else kept
    return input.mul_(kept) if inplace else input * kept


def _ones(like: Tensor, shape: torch.Size) -> Tensor:
    """Return ones whose dimensions are in the same order in memory: numbers are drawn in it."""
    order = sorted(range(like.dim()), key=like.stride, reverse=True)
    ones = torch.ones([shape[dim] for dim in order], dtype=like.dtype, device=like.device)
    return ones.permute([order.index(dim) for dim in range(like.dim())])


def patch_dropout(patches: PatchStack) -> None:
    """Let dropout act on the region that runs."""

    def wrap(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        # Here, as torch does first of all: a mode (a default device, the recorder of a trial) makes
        # the function call itself, and would have ``plain`` call this one.
        @wrap_torch_function(lambda input, *_, **__: (input,))
        def dropout(
            input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Tensor:
            if Region.current is None or not training or not p:
                return plain(input, p, training, inplace)
            return dropout_on_slice(Region.current, plain, input, p, inplace)

        return dropout

    patches.wrap("torch.nn.functional.dropout", wrap)
