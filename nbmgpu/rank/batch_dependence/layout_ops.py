"""Operations after which the samples stand elsewhere: views, transposes, joins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .elementwise_ops import together
from .op_call import Call, Found, seen_by
from .row_tags import One, Rows, Tag, placed
from .selection_ops import some


def view(call: Call, outs: Sequence[Any]) -> Found:
    """The elements keep their order."""
    tag, out = call.first, outs[0]
    if not isinstance(tag, Rows):
        return [tag]
    shape = tuple(out.shape)
    if shape == call.shape:
        return [tag]
    place = placed(tag.across(call.shape), len(tag.rows), shape)
    if place is not None:
        return [replace(tag, dim=place[0], inner=place[1])]
    # Samples put in groups of several; where they were picked before, in groups of one perhaps.
    return [call.coupled() if tag.rows == tuple(sorted(tag.seen)) else None]


def same(call: Call, outs: Sequence[Any]) -> Found:
    """The same elements."""
    return [call.first] * len(outs)


def _moved(tag: Tag, order: Sequence[int]) -> Tag:
    """Return ``tag`` after its dimensions were put in ``order``, given from the left."""
    if not isinstance(tag, Rows):
        return tag
    count = len(order)
    places = [dim % count for dim in order]
    return replace(tag, dim=places.index(tag.dim + count) - count)


def permute(call: Call, outs: Sequence[Any]) -> Found:
    """All dimensions in another order."""
    return [_moved(call.first, call.named["dims"])]


def transpose(call: Call, outs: Sequence[Any]) -> Found:
    """Two dimensions change places."""
    count = len(call.shape)
    order = list(range(count))
    if count > 1:
        a, b = (0, 1) if call.name == "t" else (call.named["dim0"], call.named["dim1"])
        order[a % count], order[b % count] = order[b % count], order[a % count]
    return [_moved(call.first, order)]


def unsqueeze(call: Call, outs: Sequence[Any]) -> Found:
    """A new dimension of size 1."""
    tag = call.first
    count = len(call.shape) + 1
    place = call.named["dim"] % count
    if isinstance(tag, Rows) and place > count - 1 + tag.dim:
        tag = replace(tag, dim=tag.dim - 1)
    return [tag]


def squeeze(call: Call, outs: Sequence[Any]) -> Found:
    """Dimensions of size 1 go."""
    tag, shape = call.first, call.shape
    if not isinstance(tag, Rows):
        return [tag]
    dims = call.named.get("dim")
    given = range(len(shape)) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {d % len(shape) for d in given if shape[d] == 1}
    if len(shape) + tag.dim in gone:
        return [One(tag.rows[0])]
    right = sum(d > len(shape) + tag.dim for d in gone)
    return [replace(tag, dim=tag.dim + right)]


def repeated(call: Call, outs: Sequence[Any]) -> Found:
    """Everything several times over."""
    tag = call.first
    if not isinstance(tag, Rows):
        return [tag]
    times = call.named["repeats"][tag.dim]
    if times == 1:
        return [tag]
    return [replace(tag, rows=tag.rows * times) if tag.plain else None]


def joined(call: Call, outs: Sequence[Any]) -> Found:
    """Concatenated along a dimension, or stacked along a new one."""
    stacked = call.name == "stack"
    count = outs[0].dim()
    dim = call.named["dim"] % count - count
    tags = [tag for tag in call.tags if tag is not None]
    rows = [tag for tag in tags if isinstance(tag, Rows)]
    if rows and len(rows) < len(tags):
        return [call.coupled()]
    if not rows:
        return [_of_several(call, tags, 1 if stacked else {shape[dim] for shape in call.shapes})]
    if stacked:  # dimensions left of the new one move by one
        rows = [replace(tag, dim=tag.dim - 1) if tag.dim <= dim else tag for tag in rows]
    elif rows[0].dim == dim:
        if len(tags) < len(call.tags) or any(tag.dim != dim or not tag.plain for tag in rows):
            return [None]
        return [Rows(dim, 1, tuple(row for tag in rows for row in tag.rows), seen_by(tags))]
    return [rows[0] if len(set(rows)) == 1 else call.coupled()]


def _of_several(call: Call, tags: Sequence[Tag], sizes: Any) -> Tag:
    """Return the tag of single samples, or totals, put beside each other."""
    if len(set(tags)) == 1:
        return tags[0]
    ones = tuple(tag.row for tag in tags if isinstance(tag, One))
    if len(ones) == len(call.tags) and sizes in (1, {1}):
        count = call.tensors[0].dim() + (call.name == "stack")
        return Rows(call.named["dim"] % count - count, 1, ones, frozenset(ones))
    return together(tags)


def copied(call: Call, outs: Sequence[Any]) -> Found:
    """Written into another tensor."""
    source, target = call.tag("src"), call.named["self"]
    same = isinstance(call.named["src"], Tensor) and target.shape == call.named["src"].shape
    return [source if same or not isinstance(source, Rows) else None]


def reordered(call: Call, outs: Sequence[Any]) -> Found:
    """Flip and roll."""
    tag, shape = call.first, call.shape
    dims = call.named["dims"]
    if not isinstance(tag, Rows):
        return [tag]
    places = torch.arange(len(tag.rows))
    here = [i for i, d in enumerate(dims) if d % len(shape) == len(shape) + tag.dim]
    if not here and dims:
        return [tag]
    if not tag.plain or not dims:
        return [call.coupled()]
    shift = [call.named["shifts"][i] for i in here] if call.name == "roll" else []
    moved = places.roll(shift, [0] * len(shift)) if shift else places.flip(0)
    return [some(tag, moved.tolist())]


def embedding(call: Call, outs: Sequence[Any]) -> Found:
    """Rows of a table."""
    tag = call.tag("indices")
    return [replace(tag, dim=tag.dim - 1) if isinstance(tag, Rows) else tag]
