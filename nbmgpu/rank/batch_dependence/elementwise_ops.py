"""Rules of elementwise operators, and of operators on sums over samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .op_call import OpCall, sources_of
from .tags import Batched, Guard, SampleSum, Shape, SingleSample, Tag


def elementwise(call: OpCall, output: Any) -> Tag | None:
    """Elementwise operators, and others that keep the positions of the samples."""
    if not isinstance(output, Tensor):
        return None
    shape = tuple(output.shape)
    tags = [tag for tag in call.tags if tag is not None]
    batched = [
        (t, s) for t, s in zip(call.tags, call.shapes, strict=True) if isinstance(t, Batched)
    ]
    if not batched:
        return without_batch_dim(call, tags)
    if len(batched) < len(tags):  # per-sample values are combined with a sum or a single sample
        return call.cross_sample()
    tag, before = batched[0]
    if shape == _broadcast(call.shapes):
        same = len({each for each, _ in batched}) == 1  # else repeated, perhaps
        same = same or len({(each.dim, each.layout) for each, _ in batched}) == 1
        # A single sample with as many rows as the global batch has samples.
        repeated = tag.block_size == 1 and shape[tag.dim] > before[tag.dim]
        if repeated or not same:
            return call.cross_sample()
        return replace(tag, sources=sources_of(tags))
    dim = len(before) + tag.dim
    if dim < len(shape) and shape[dim] == before[dim]:
        return replace(tag, dim=dim - len(shape))
    if -tag.dim <= len(shape) and shape[tag.dim] == before[tag.dim]:
        return tag
    return None


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def without_batch_dim(call: OpCall, tags: Sequence[Tag]) -> Tag | None:
    """Operators on values of single samples, and on sums over samples."""
    if len(set(tags)) == 1 and isinstance(tags[0], SingleSample):
        return tags[0]
    if call.name in COMPARISON_OPS:
        return Guard() if _is_guard(call) else call.cross_sample()
    total = replace(add_tags(tags), has_other_terms=_has_other_terms(call))
    sums = sum(isinstance(tag, SampleSum) for tag in tags)
    if call.name in LINEAR_OPS or (call.name in CLAMPING_OPS and sums == len(tags)):
        return total
    if call.name == "mul" and len(tags) == 1:
        return total
    if call.name == "div" and isinstance(call.tag_of("self"), SampleSum | SingleSample):
        # A sum divided by a count: the weights of ranks take such counts into account.
        divisor = call.arguments["other"]
        if call.tag_of("other") is None or (divisor.numel() == 1 and not divisor.requires_grad):
            return total
    return call.cross_sample()


def add_tags(tags: Sequence[Tag]) -> SampleSum:
    """Return the tag of a sum of per-sample values and of sums over samples."""
    sums = [tag for tag in tags if isinstance(tag, SampleSum)]
    adds_subsets = len({tag.sources for tag in sums}) > 1 or any(tag.adds_subsets for tag in sums)
    mean_of_subset = any(tag.mean_of_subset for tag in sums)
    return SampleSum(sources_of(tags), mean_of_subset, adds_subsets=adds_subsets)


def _has_other_terms(call: OpCall) -> bool:
    """Return whether a sum has, or gets, a term that requires grad and belongs to no sample."""
    operands = [*zip(call.tensors, call.tags, strict=True)]
    others = call.name in ("add", "sub") and any(
        tag is None and tensor.requires_grad for tensor, tag in operands
    )
    return others or any(isinstance(tag, SampleSum) and tag.has_other_terms for _, tag in operands)


def reduced_loss(call: OpCall, tags: Sequence[Tag]) -> Tag:
    """Loss functions that return the sum or mean over their elements."""
    if all(isinstance(tag, SingleSample) for tag in tags) and len(set(tags)) == 1:
        return tags[0]
    layouts = {tag.layout for tag in tags if isinstance(tag, Batched)}
    if len(layouts) != 1 or len(set(map(type, tags))) != 1:
        return call.cross_sample()
    first = next(tag for tag in tags if isinstance(tag, Batched))
    is_mean = call.arguments["reduction"] == MEAN_REDUCTION
    return SampleSum(sources_of(tags), is_mean and first.is_subset)


MEAN_REDUCTION = 1
"""The value of a loss operator's ``reduction`` argument in ATen for the mean."""


LINEAR_OPS = {"add", "sub", "rsub", "neg", "alias", "detach", "clone", "_to_copy", "lift_fresh",
              "sum", "mean"}  # fmt: skip


def _is_guard(call: OpCall) -> bool:
    """Return whether a comparison of a sum asks for nan, infinity, or a count of zero."""
    if call.name not in RELATIONS:
        return True
    number, other = call.arguments["self"], call.arguments["other"]
    if other is number:  # nan
        return True
    if isinstance(other, Tensor):
        return False
    return abs(other) == math.inf or (other == 0 and bool((number == number.round()).all()))


RELATIONS = {"eq", "ne", "lt", "le", "gt", "ge"}

COMPARISON_OPS = RELATIONS | {"isnan", "isinf", "isfinite", "logical_not"}
"""Operators with a truth value for each element."""

CLAMPING_OPS = {"clamp", "clamp_min", "maximum", "where", "nan_to_num"}
"""Operators that keep a count from being zero."""
