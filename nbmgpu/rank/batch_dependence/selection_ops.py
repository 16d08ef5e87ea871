"""Operations that take some of the samples by their place: slices, splits, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .op_call import Call, Found
from .reduction_ops import along
from .row_tags import One, Rows, Tag


def some(tag: Rows, places: Sequence[int], each: bool = False) -> Rows:
    """Return the tag of some of the samples; ``each`` was looked at by itself."""
    rows = tuple(tag.rows[place] for place in places)
    return replace(tag, rows=rows, seen=tag.seen if each else frozenset(rows))


def selected(call: Call, outs: Sequence[Any]) -> Found:
    """One place along a dimension."""
    tag, shape = call.first, call.shape
    if not isinstance(tag, Rows):
        return [tag]
    dim, place = call.named["dim"] % len(shape), len(shape) + tag.dim
    if dim != place:
        return [replace(tag, dim=tag.dim + 1) if dim > place else tag]
    index = call.named["index"] % shape[dim]
    return [One(tag.rows[index // tag.inner % len(tag.rows)])]


def sliced(call: Call, outs: Sequence[Any]) -> Found:
    """A range of places along a dimension."""
    tag, shape = call.first, call.shape
    if not isinstance(tag, Rows):
        return [tag]
    dim = call.named["dim"] % len(shape)
    if dim != len(shape) + tag.dim or outs[0].shape[dim] == shape[dim]:
        return [tag]
    taken = slice(call.named["start"], call.named["end"], call.named["step"])
    places = range(shape[dim])[taken]
    return [_cut(tag, places)]


def _cut(tag: Rows, places: Sequence[int]) -> Tag | None:
    """Return the tag of the elements ``places`` along the dimension of samples."""
    if tag.plain and len(places) == 1:
        return One(tag.rows[places[0] % len(tag.rows)])
    if tag.plain:
        return some(tag, [place % len(tag.rows) for place in places])
    wide = tag.inner
    whole = len(places) % wide == 0 and all(
        p == places[0] + i and places[0] % wide == 0 for i, p in enumerate(places)
    )
    if not whole:
        return None
    return some(tag, [place // wide % len(tag.rows) for place in places[::wide]])


def parted(call: Call, outs: Sequence[Any]) -> Found:
    """Split into pieces along a dimension."""
    tag, shape = call.first, call.shape
    dim = call.named["dim"] % len(shape)
    if not isinstance(tag, Rows) or dim != len(shape) + tag.dim:
        return [tag] * len(outs)
    found, begin = [], 0
    for out in outs:
        found.append(_cut(tag, range(begin, begin + out.shape[dim])))
        begin += out.shape[dim]
    return found


def unbound(call: Call, outs: Sequence[Any]) -> Found:
    """All places along a dimension, one by one."""
    tag, shape = call.first, call.shape
    if not isinstance(tag, Rows):
        return [tag] * len(outs)
    dim, place = call.named["dim"] % len(shape), len(shape) + tag.dim
    if dim != place:
        return [replace(tag, dim=tag.dim + 1) if dim > place else tag] * len(outs)
    return [One(tag.rows[i // tag.inner % len(tag.rows)]) for i in range(len(outs))]


def in_order(call: Call, outs: Sequence[Any]) -> Found:
    """Sorting along ``dim``: numbers of single samples stay theirs, in another order."""
    tag, shape = call.first, call.shape
    if not isinstance(tag, Rows) or len(shape) != 1:
        return along(call, outs)
    return [some(tag, outs[-1].tolist(), each=True) if tag.plain else None] * len(outs)
