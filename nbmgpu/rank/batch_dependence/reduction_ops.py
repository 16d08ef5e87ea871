"""Operations that may take several samples together: reductions, products, normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .elementwise_ops import each, single
from .op_call import Call, Found
from .row_tags import Coupled, One, Rows, Tag, Total


def _dims(call: Call, count: int) -> set[int]:
    """Return the dimensions that a reduction takes, from the left; all by default."""
    dims = call.named.get("dim")
    if dims is None or dims == []:
        return set(range(count))
    return {d % count for d in ([dims] if isinstance(dims, int) else dims)} if count else set()


def reduced(call: Call, outs: Sequence[Any]) -> Found:
    """Sums, means, norms and the like over some dimensions."""
    tag, shape = call.first, call.shape
    if "other" in call.named:  # of two tensors, element by element
        return [each(call, outs[0])]
    if not isinstance(tag, Rows):
        linear = call.name in ADDS or isinstance(tag, One)
        return [tag if linear else call.coupled()] * len(outs)
    dims = _dims(call, len(shape))
    place = len(shape) + tag.dim
    if place in dims:
        chosen = call.name == "mean" and tag.chosen
        found: Tag = Total(tag.seen, chosen) if call.name in ADDS else call.coupled()
        return [found] * len(outs)
    right = sum(d > place for d in dims)
    kept = tag if call.named.get("keepdim") else replace(tag, dim=tag.dim + right)
    return [kept] * len(outs)


ADDS = {"sum", "mean", "nansum"}


def tallied(call: Call, outs: Sequence[Any]) -> Found:
    """Counts of values, to which each sample adds."""
    return [Total(call.first.seen)] * len(outs)


def along(call: Call, outs: Sequence[Any]) -> Found:
    """Softmax, sorting, cumulative sums: what mixes along one dimension, ``dim``."""
    tag, shape = call.first, call.shape
    if not isinstance(tag, Rows):
        return [tag if isinstance(tag, One) else call.coupled()] * len(outs)
    dim = call.named.get("dim", -1)
    if (dim % max(len(shape), 1)) == len(shape) + tag.dim:
        return [call.coupled()] * len(outs)
    return [tag] * len(outs)


def product(call: Call, outs: Sequence[Any]) -> Found:
    """Products of matrices, and of batches of them."""
    names = MATRICES[call.name]
    tags = [call.tag(name) for name in names]
    a, b = tags
    if a is None and b is None:
        return [each(call, outs[0])]
    left, right = isinstance(a, Rows), isinstance(b, Rows)
    if not left and not right:
        return [single(replace(call, name="mul"), [tag for tag in tags if tag is not None])]
    if (left and b is None) or (right and a is None):
        mine = a if left else b
        assert isinstance(mine, Rows)
        if mine.dim == -3:
            return [mine]
        vector = call.named[names[1]].dim() == 1
        kept = -2 if left else -1
        if mine.dim != kept or (vector and right):
            return [call.coupled()]
        return [replace(mine, dim=-1) if vector else mine]
    if isinstance(a, Rows) and isinstance(b, Rows) and (a.inner, a.rows) == (b.inner, b.rows):
        if a.dim == b.dim == -3:
            return [a]
        contracted = -1 if call.named[names[1]].dim() == 1 else -2
        if a.dim == -1 and b.dim == contracted:
            return [Total(a.seen | b.seen)]
    return [call.coupled()]


MATRICES = {
    "mm": ("self", "mat2"), "addmm": ("mat1", "mat2"), "bmm": ("self", "mat2"),
    "baddbmm": ("batch1", "batch2"), "mv": ("self", "vec"), "addmv": ("mat", "vec"),
    "dot": ("self", "tensor"), "vdot": ("self", "other"),
}  # fmt: skip


def attention(call: Call, outs: Sequence[Any]) -> Found:
    """Scaled dot product attention, over the last dimension but one."""
    tags = {tag for tag in (call.tag(n) for n in ("query", "key", "value")) if tag is not None}
    if len(tags) != 1:
        return [call.coupled()] if tags else [None] * len(outs)
    tag = tags.pop()
    apart = not isinstance(tag, Rows) or tag.dim < -2
    return [tag if apart else call.coupled(), *[None] * (len(outs) - 1)]


def batch_norm(call: Call, outs: Sequence[Any]) -> Found:
    """Statistics over all dimensions but the second: one's own only where samples lie there.

    That a module normalises over its share is said elsewhere; here it is known for functions.
    """
    tag = call.tag("input")
    apart = not isinstance(tag, Rows) or len(call.shape) + tag.dim == 1
    training = call.named.get("training", call.named.get("train", True))
    return [tag if apart or not training else NORMALISED, *[None] * (len(outs) - 1)]


def recurrent(call: Call, outs: Sequence[Any]) -> Found:
    """Layers that go along time, the first dimension: of its own, a CPU's have turned it there."""
    tag = call.tag("input")
    on_cpu = call.name.startswith("mkldnn")
    along = 1 if call.named.get("batch_first") and not on_cpu else 0
    if isinstance(tag, Rows) and len(call.shape) + tag.dim == along:
        return [call.coupled()] * len(outs)
    return [each(call, out) for out in outs]


NORMALISED = Coupled("batch_norm")
"""The result of a batch normalisation over samples."""


def pairs(call: Call, outs: Sequence[Any]) -> Found:
    """Distances between all rows of two tensors."""
    tags = {tag for tag in call.tags if tag is not None}
    tag = tags.pop()
    apart = not tags and (isinstance(tag, One) or (isinstance(tag, Rows) and tag.dim < -2))
    alone = not tags and sum(t is not None for t in call.tags) == 1 and isinstance(tag, Rows)
    if alone and call.tensors[0] is not call.tensors[-1] and call.tags[0] is not None:
        return [tag]
    return [tag if apart else call.coupled()] * len(outs)
