"""Rules of operators that select samples by position: slices, splits, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .op_call import OpCall, OutputTags
from .reduction_ops import along_dim
from .tags import Batched, SingleSample, Tag


def select_samples(tag: Batched, positions: Sequence[int], by_value: bool = False) -> Batched:
    """Return the tag of the samples at ``positions`` among those of ``tag``.

    Args:
        tag: the tag before the selection.
        positions: positions in ``tag.samples``.
        by_value: whether each sample is selected by its own values, not by its position.
    """
    samples = tuple(tag.samples[position] for position in positions)
    return replace(tag, samples=samples, sources=tag.sources if by_value else frozenset(samples))


def select(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """One index along a dimension."""
    tag, shape = call.first_tag, call.first_shape
    if not isinstance(tag, Batched):
        return [tag]
    dim, batch_dim = call.arguments["dim"] % len(shape), len(shape) + tag.dim
    if dim != batch_dim:
        return [replace(tag, dim=tag.dim + 1) if dim > batch_dim else tag]
    index = call.arguments["index"] % shape[dim]
    return [SingleSample(tag.samples[index // tag.block_size % len(tag.samples)])]


def slice_dim(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """A range of indices along a dimension."""
    tag, shape = call.first_tag, call.first_shape
    if not isinstance(tag, Batched):
        return [tag]
    dim = call.arguments["dim"] % len(shape)
    if dim != len(shape) + tag.dim or outputs[0].shape[dim] == shape[dim]:
        return [tag]
    selected = slice(call.arguments["start"], call.arguments["end"], call.arguments["step"])
    indices = range(shape[dim])[selected]
    return [_select_indices(tag, indices)]


def _select_indices(tag: Batched, indices: Sequence[int]) -> Tag | None:
    """Return the tag of the elements at ``indices`` along the batch dimension."""
    if tag.one_sample_per_index and len(indices) == 1:
        return SingleSample(tag.samples[indices[0] % len(tag.samples)])
    if tag.one_sample_per_index:
        return select_samples(tag, [index % len(tag.samples) for index in indices])
    size = tag.block_size
    whole_blocks = len(indices) % size == 0 and all(
        index == indices[0] + i and indices[0] % size == 0 for i, index in enumerate(indices)
    )
    if not whole_blocks:
        return None
    return select_samples(tag, [index // size % len(tag.samples) for index in indices[::size]])


def split(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Chunks along a dimension."""
    tag, shape = call.first_tag, call.first_shape
    dim = call.arguments["dim"] % len(shape)
    if not isinstance(tag, Batched) or dim != len(shape) + tag.dim:
        return [tag] * len(outputs)
    tags, begin = [], 0
    for output in outputs:
        tags.append(_select_indices(tag, range(begin, begin + output.shape[dim])))
        begin += output.shape[dim]
    return tags


def unbind(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """All indices along a dimension, one by one."""
    tag, shape = call.first_tag, call.first_shape
    if not isinstance(tag, Batched):
        return [tag] * len(outputs)
    dim, batch_dim = call.arguments["dim"] % len(shape), len(shape) + tag.dim
    if dim != batch_dim:
        return [replace(tag, dim=tag.dim + 1) if dim > batch_dim else tag] * len(outputs)
    count = len(tag.samples)
    return [SingleSample(tag.samples[i // tag.block_size % count]) for i in range(len(outputs))]


def sort(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Sorting along ``dim``: one number per sample stays the sample's, in another order."""
    tag, shape = call.first_tag, call.first_shape
    if not isinstance(tag, Batched) or len(shape) != 1:
        return along_dim(call, outputs)
    if not tag.one_sample_per_index:
        return [None] * len(outputs)
    return [select_samples(tag, outputs[-1].tolist(), by_value=True)] * len(outputs)
