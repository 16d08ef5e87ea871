"""One call of a block on this rank's slices of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from nbmgpu.strategies.tp.collectives import replicate_input, split_parts

from .parameters import replicated_parameters
from .region import Region
from .sequence_tensor import SequenceTensor, whole_of


def run_on_slice(
    module: nn.Module, call: Callable[..., Any], region: Region, leaves: list[Any], spec: Any
) -> tuple[list[Any], Any]:
    """Run a block on this rank's slices of its arguments; return the leaves of its output.

    Args:
        module: the block.
        call: its forward function.
        region: the slices.
        leaves, spec: the arguments.
    """
    parts = [part_of_argument(leaf, region) for leaf in leaves]
    args, kwargs = tree_unflatten(parts, spec)
    with replicated_parameters(module, region.group), region.active():
        return tree_flatten(call(*args, **kwargs))


def part_of_argument(leaf: Any, region: Region) -> Any:
    """Return this rank's slice of an argument, or the whole for all positions."""
    if not isinstance(leaf, Tensor):
        return leaf
    if is_sequence(leaf, region):
        split = region.layout(leaf.shape, region.dim)
        if isinstance(leaf, SequenceTensor):
            return leaf.slice_for_block(split)
        return split_parts(leaf, split)
    whole = whole_of(leaf)
    return replicate_input(whole, region.group) if whole.requires_grad else whole


def is_sequence(leaf: Tensor, region: Region) -> bool:
    """Whether an argument has an element for each position, along the region's dimension."""
    is_square = leaf.dim() == 2 and leaf.shape[0] == leaf.shape[1]  # a mask
    return not is_square and region.dim < leaf.dim() and leaf.shape[region.dim] == region.length
