"""Gives variables of the cell the whole last batch, for what the cell computes after its loop."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nbmgpu.serialization.joined_parts import join_columns
from nbmgpu.serialization.value_tree import ValueTree
from nbmgpu.strategies import collectives
from nbmgpu.strategies.sharded_state import gather_objects

if TYPE_CHECKING:
    from nbmgpu.environment.headers import SampleDims
    from nbmgpu.rank.rank_info import RankInfo

    from .last_batch import LastBatches

Part = tuple["SampleDims", list[Any]]
"""The leaves of a value, on the CPU, and the dimension of the samples in each."""


def make_whole(
    names: Iterable[str],
    variables: MutableMapping[str, Any],
    last_batches: LastBatches,
    rank_info: RankInfo,
) -> None:
    """Bind ``names`` that hold parts of the last batch to the whole of it; collective.

    What is too large, or has no tensors alone, stays as it is.

    Args:
        names: the same on all ranks.
        variables: of the cell.
        last_batches: know which variables hold parts.
        rank_info: of this rank.

    Raises:
        RankError: another rank takes more backward passes.
    """
    # On the way of the gradients: if another rank still reduces some, both are told so there.
    collectives.all_reduce(torch.zeros(1), rank_info.dp_group).wait()
    held = {name: variables[name] for name in names if name in variables}
    parts = last_batches.part_of(held) or {}
    known = last_batches.names_in(held).items()
    dims = {name: dim for name, dim in known if name in parts and dim is not None}
    trees = {name: ValueTree.of(held[name]) for name in dims}
    own = {name: (dims[name], list(map(_sent, tree.leaves))) for name, tree in trees.items()}
    found = gather_objects((rank_info.dp_rank, own), rank_info.dp_group)
    ordered: list[dict[str, Part]] = [part for _, part in sorted(found, key=lambda each: each[0])]
    for name, tree in trees.items():
        if any(name not in part or part[name][0] != dims[name] for part in ordered):
            continue
        columns = [part[name][1] for part in ordered]
        with suppress(ValueError, RuntimeError):  # they do not fit together, or no memory is left
            leaves = zip(join_columns(columns, dims[name]), tree.leaves, strict=True)
            variables[name] = tree.with_leaves([_placed(*pair) for pair in leaves])


def _sent(leaf: Any) -> Any:
    return leaf.detach().cpu() if isinstance(leaf, Tensor) else leaf


def _placed(leaf: Any, like: Any) -> Any:
    return leaf.to(like.device) if isinstance(like, Tensor) else leaf
