"""One call of a block on this rank's slices of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from nbmgpu.strategies.sharding.collectives import replicate_input, split_parts

from .parameters import replicated_parameters
from .region import NotSplittableError, Region
from .sequence_tensor import SequenceTensor, whole_of


def run_on_slices(
    module: nn.Module,
    call: Callable[..., Any],
    region: Region,
    arguments: tuple[Sequence[Any], Any],
    split: Sequence[bool],
) -> tuple[list[Any], Any]:
    """Run a block on this rank's slices of its arguments.

    Args:
        module: the block.
        call: its forward function.
        region: the slices.
        arguments: the leaves of the block's arguments, and their structure.
        split: which leaves are split; the others are whole, for all positions.

    Returns:
        The leaves of the output, and its structure.

    Raises:
        NotSplittableError: an argument has another size than the sequence.
    """
    leaves, spec = arguments
    parts = [_part(leaf, region, s) for leaf, s in zip(leaves, split, strict=True)]
    args, kwargs = tree_unflatten(parts, spec)
    with replicated_parameters(module, region.replicate), region.active():
        return tree_flatten(call(*args, **kwargs))


def split_arguments(leaves: Sequence[Any], region: Region) -> tuple[bool, ...]:
    """Return which arguments have an element for each position, along the region's dimension."""
    return tuple(_has_positions(leaf, region) for leaf in leaves)


def _has_positions(leaf: Any, region: Region) -> bool:
    if not isinstance(leaf, Tensor) or leaf.dim() <= region.dim:
        return False
    is_square = leaf.dim() == 2 and leaf.shape[0] == leaf.shape[1]  # a mask
    return not is_square and leaf.shape[region.dim] == region.length


def _part(leaf: Any, region: Region, is_split: bool) -> Any:
    """Return this rank's slice of an argument, or the whole for all positions."""
    if not isinstance(leaf, Tensor):
        return leaf
    if not is_split:
        whole = whole_of(leaf)
        return replicate_input(whole, region.group) if whole.requires_grad else whole
    if leaf.shape[region.dim] != region.length:
        raise NotSplittableError("its arguments have other shapes than in its trial")
    layout = region.layout(leaf.shape, region.dim)
    if isinstance(leaf, SequenceTensor):
        return leaf.slice_for_block(layout)
    return split_parts(leaf, layout)
