"""Rules of operators that move samples: views, transposes, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .elementwise_ops import add_tags
from .op_call import OpCall, OutputTags, sources_of
from .selection_ops import select_samples
from .tags import Batched, SingleSample, Tag, find_batch_dim, find_dim_of_one_sample


def view(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Views and reshapes, which keep the order of elements."""
    tag, output = call.first_tag, outputs[0]
    if not isinstance(tag, Batched):
        return [tag]
    before, shape = call.first_shape, tuple(output.shape)
    if shape == before:
        return [tag]
    if len(tag.samples) == 1:
        found = find_dim_of_one_sample(tag, before, shape)
    else:
        found = find_batch_dim(tag.sample_stride(before), len(tag.samples), shape)
    if found is not None:
        return [replace(tag, dim=found[0], block_size=found[1])]
    # Samples are grouped.  If they were selected before, the groups may be of one sample each.
    return [call.cross_sample() if tag.samples == tuple(sorted(tag.sources)) else None]


def unchanged(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Operators that return the same elements."""
    return [call.first_tag] * len(outputs)


def _permute_tag(tag: Tag, order: Sequence[int]) -> Tag:
    """Return ``tag`` after its dimensions were put in ``order``, given from the left."""
    if not isinstance(tag, Batched):
        return tag
    count = len(order)
    dims = [dim % count for dim in order]
    return replace(tag, dim=dims.index(tag.dim + count) - count)


def permute(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """All dimensions in another order."""
    return [_permute_tag(call.first_tag, call.arguments["dims"])]


def transpose(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Two dimensions swapped."""
    count = len(call.first_shape)
    order = list(range(count))
    if count > 1:
        a, b = (0, 1) if call.name == "t" else (call.arguments["dim0"], call.arguments["dim1"])
        order[a % count], order[b % count] = order[b % count], order[a % count]
    return [_permute_tag(call.first_tag, order)]


def unsqueeze(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """A new dimension of size 1."""
    tag = call.first_tag
    count = len(call.first_shape) + 1
    dim = call.arguments["dim"] % count
    if isinstance(tag, Batched) and dim > count - 1 + tag.dim:
        tag = replace(tag, dim=tag.dim - 1)
    return [tag]


def squeeze(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Dimensions of size 1 removed."""
    tag, shape = call.first_tag, call.first_shape
    if not isinstance(tag, Batched):
        return [tag]
    dims = call.arguments.get("dim")
    candidates = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    removed = {d % len(shape) for d in candidates if shape[d] == 1}
    if len(shape) + tag.dim in removed:
        return [SingleSample(tag.samples[0])]
    right = sum(d > len(shape) + tag.dim for d in removed)
    return [replace(tag, dim=tag.dim + right)]


def repeat(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """The tensor repeated along its dimensions."""
    tag = call.first_tag
    if not isinstance(tag, Batched):
        return [tag]
    times = call.arguments["repeats"][tag.dim]
    if times == 1:
        return [tag]
    return [replace(tag, samples=tag.samples * times) if tag.one_sample_per_index else None]


def concatenate(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Tensors concatenated along a dimension, or stacked along a new one."""
    stacks = call.name == "stack"
    count = outputs[0].dim()
    dim = call.arguments["dim"] % count - count
    tags = [tag for tag in call.tags if tag is not None]
    batched = [tag for tag in tags if isinstance(tag, Batched)]
    if batched and len(batched) < len(tags):
        return [call.cross_sample()]
    if not batched:
        sizes = 1 if stacks else {shape[dim] for shape in call.shapes}
        return [_concatenate_without_batch_dim(call, tags, sizes)]
    if stacks:  # dimensions left of the new one move by one
        batched = [replace(tag, dim=tag.dim - 1) if tag.dim <= dim else tag for tag in batched]
    elif batched[0].dim == dim:
        if len(tags) < len(call.tags) or any(
            tag.dim != dim or not tag.one_sample_per_index for tag in batched
        ):
            return [None]
        samples = tuple(sample for tag in batched for sample in tag.samples)
        return [Batched(dim, 1, samples, sources_of(tags))]
    return [batched[0] if len(set(batched)) == 1 else call.cross_sample()]


def _concatenate_without_batch_dim(call: OpCall, tags: Sequence[Tag], sizes: Any) -> Tag:
    """Return the tag of concatenated single samples or sums.

    Args:
        call: the operator call.
        tags: the tags of its operands.
        sizes: the operands' sizes along the dimension of concatenation, 1 for a new dimension.
    """
    if len(set(tags)) == 1:
        return tags[0]
    samples = tuple(tag.sample for tag in tags if isinstance(tag, SingleSample))
    if len(samples) == len(call.tags) and sizes in (1, {1}):
        count = call.tensors[0].dim() + (call.name == "stack")
        return Batched(call.arguments["dim"] % count - count, 1, samples, frozenset(samples))
    return add_tags(tags)


def copy(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """A tensor copied into another one."""
    tag, target = call.tag_of("src"), call.arguments["self"]
    source = call.arguments["src"]
    same_shape = isinstance(source, Tensor) and target.shape == source.shape
    return [tag if same_shape or not isinstance(tag, Batched) else None]


def flip_or_roll(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Elements in another order along some dimensions."""
    tag, shape = call.first_tag, call.first_shape
    dims = call.arguments["dims"]
    if not isinstance(tag, Batched):
        return [tag]
    positions = torch.arange(len(tag.samples))
    of_batch = [i for i, d in enumerate(dims) if d % len(shape) == len(shape) + tag.dim]
    if not of_batch and dims:
        return [tag]
    if not tag.one_sample_per_index or not dims or len(tag.samples) == 1:
        return [call.cross_sample()]
    shifts = [call.arguments["shifts"][i] for i in of_batch] if call.name == "roll" else []
    moved = positions.roll(shifts, [0] * len(shifts)) if shifts else positions.flip(0)
    return [select_samples(tag, moved.tolist())]


def embedding(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Rows of a table."""
    tag = call.tag_of("indices")
    return [replace(tag, dim=tag.dim - 1) if isinstance(tag, Batched) else tag]
