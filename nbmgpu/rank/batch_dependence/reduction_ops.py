"""Rules of operators that may combine several samples: reductions, products, normalization."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch.nn.functional as F

from nbmgpu.rank.source_analysis.stack_frames import is_called_by

from .elementwise_ops import elementwise, without_batch_dim
from .op_call import OpCall, OutputTags
from .tags import Batched, CrossSample, SampleSum, SingleSample, Tag


def dims_of(call: OpCall, count: int) -> set[int]:
    """Return the dimensions that an operator acts along, from the left; all by default."""
    dims = call.arguments.get("dims" if "dims" in call.arguments else "dim")
    if dims is None or dims == []:
        return set(range(count))
    return {d % count for d in ([dims] if isinstance(dims, int) else dims)} if count else set()


def reduce(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Sums, means, norms and the like over some dimensions."""
    tag, shape = call.first_tag, call.first_shape
    if "other" in call.arguments:  # elementwise, of two tensors
        return [elementwise(call, outputs[0])]
    if not isinstance(tag, Batched):
        keeps_tag = call.name in SUM_OPS or isinstance(tag, SingleSample)
        return [tag if keeps_tag else call.cross_sample()] * len(outputs)
    dims = dims_of(call, len(shape))
    batch_dim = len(shape) + tag.dim
    if batch_dim in dims:
        mean_of_subset = call.name == "mean" and tag.is_subset
        reduced: Tag = (
            SampleSum(tag.sources, mean_of_subset) if call.name in SUM_OPS else call.cross_sample()
        )
        return [reduced] * len(outputs)
    right = sum(d > batch_dim for d in dims)
    kept = tag if call.arguments.get("keepdim") else replace(tag, dim=tag.dim + right)
    return [kept] * len(outputs)


SUM_OPS = {"sum", "mean", "nansum"}


def across_samples(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Operators that combine all samples."""
    alone = isinstance(call.first_tag, SingleSample)
    return [call.first_tag if alone else call.cross_sample()] * len(outputs)


def along_dim(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Softmax, sorting, cumulative sums: operators that combine elements along one ``dim``."""
    tag, shape = call.first_tag, call.first_shape
    if not isinstance(tag, Batched):
        return [tag if isinstance(tag, SingleSample) else call.cross_sample()] * len(outputs)
    dim = call.arguments.get("dim", -1)
    if (dim % max(len(shape), 1)) == len(shape) + tag.dim:
        return [call.cross_sample()] * len(outputs)
    return [tag] * len(outputs)


def matmul(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Products of matrices and vectors, and batched products."""
    names = MATMUL_OPERANDS[call.name]
    tags = [call.tag_of(name) for name in names]
    a, b = tags
    if a is None and b is None:
        return [elementwise(call, outputs[0])]
    left, right = isinstance(a, Batched), isinstance(b, Batched)
    if not left and not right:
        as_product = replace(call, name="mul")
        return [without_batch_dim(as_product, [tag for tag in tags if tag is not None])]
    if (left and b is None) or (right and a is None):
        batched = a if left else b
        assert isinstance(batched, Batched)
        if batched.dim == -3:
            return [batched]
        by_vector = call.arguments[names[1]].dim() == 1
        kept_dim = -2 if left else -1
        if batched.dim != kept_dim or (by_vector and right):
            return [call.cross_sample()]
        return [replace(batched, dim=-1) if by_vector else batched]
    if (
        isinstance(a, Batched)
        and isinstance(b, Batched)
        and (a.block_size, a.samples) == (b.block_size, b.samples)
    ):
        if a.dim == b.dim == -3:
            return [a]
        contracted = -1 if call.arguments[names[1]].dim() == 1 else -2
        if a.dim == -1 and b.dim == contracted:
            return [SampleSum(a.sources | b.sources)]
    return [call.cross_sample()]


MATMUL_OPERANDS = {
    "mm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"), "mv": ("self", "vec"), "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"), "vdot": ("self", "other"),
}  # fmt: skip


def attention(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Scaled dot product attention, along the last but one dimension."""
    tags = {tag for tag in (call.tag_of(n) for n in ("query", "key", "value")) if tag is not None}
    if len(tags) != 1:
        return [call.cross_sample()] if tags else [None] * len(outputs)
    tag = tags.pop()
    per_sample = not isinstance(tag, Batched) or tag.dim < -2
    return [tag if per_sample else call.cross_sample(), *[None] * (len(outputs) - 1)]


def batch_norm(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Statistics over all dimensions but the second, which are per sample only if that is batched.

    Batch norm modules that normalize over a shard are handled elsewhere; this rule is for the
    functional form.
    """
    tag = call.tag_of("input")
    per_sample = not isinstance(tag, Batched) or len(call.first_shape) + tag.dim == 1
    if isinstance(tag, Batched) and len(tag.samples) == 1:
        # The view of one sample by which torch makes instance norm a batch norm changes no shape.
        per_sample |= is_called_by(F.instance_norm, sys._getframe())
    training = call.arguments.get("training", call.arguments.get("train", True))
    return [tag if per_sample or not training else BATCH_NORM_TAG, *[None] * (len(outputs) - 1)]


def recurrent(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Recurrent layers, which combine elements along time, the first dimension.

    The CPU kernel gets its input already transposed to time first, whatever ``batch_first`` is.
    """
    tag = call.tag_of("input")
    on_cpu = call.name.startswith("mkldnn")
    time_dim = 1 if call.arguments.get("batch_first") and not on_cpu else 0
    if isinstance(tag, Batched) and len(call.first_shape) + tag.dim == time_dim:
        return [call.cross_sample()] * len(outputs)
    return [elementwise(call, output) for output in outputs]


BATCH_NORM_TAG = CrossSample("batch_norm")
"""The tag of the output of a batch normalization over samples."""


def pairwise_distance(call: OpCall, outputs: Sequence[Any]) -> OutputTags:
    """Distances between all rows of two tensors."""
    tags = {tag for tag in call.tags if tag is not None}
    tag = tags.pop()
    per_sample = not tags and (
        isinstance(tag, SingleSample) or (isinstance(tag, Batched) and tag.dim < -2)
    )
    one_operand = (
        not tags and sum(t is not None for t in call.tags) == 1 and isinstance(tag, Batched)
    )
    if one_operand and call.tensors[0] is not call.tensors[-1] and call.tags[0] is not None:
        return [tag]
    return [tag if per_sample else call.cross_sample()] * len(outputs)
