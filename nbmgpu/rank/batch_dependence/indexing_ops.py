"""Operations that take some of the samples by an index or a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .elementwise_ops import each
from .op_call import Call, Found
from .row_tags import Coupled, Rows, Shape, Tag
from .selection_ops import some

MOST_PLACES = 50_000
"""Places of an index that are looked at one by one."""


@dataclass(frozen=True)
class Part:
    """The index of one dimension: ``places`` with a tag; part of a mask, if ``masks``."""

    places: Tensor
    tag: Tag | None
    masks: bool


@dataclass(frozen=True)
class Index:
    """An advanced index: its ``parts`` by dimension, of a tensor of ``shape``."""

    parts: dict[int, Part]
    shape: Shape

    @classmethod
    def of(cls, call: Call) -> Index:
        """Read the index of ``call``; a mask has a part for each of its dimensions."""
        tags = {id(t): tag for t, tag in zip(call.tensors, call.tags, strict=True)}
        parts: dict[int, Part] = {}
        dim = 0
        for index in call.named["indices"]:
            if index is None:
                dim += 1
                continue
            masks = index.dtype in (torch.bool, torch.uint8)
            for places in index.nonzero(as_tuple=True) if masks else (index,):
                parts[dim] = Part(places, tags.get(id(index)), masks)
                dim += 1
        return cls(parts, tuple(call.named["self"].shape))

    @property
    def width(self) -> int:
        """How many dimensions take the place of those that are indexed."""
        return len(torch.broadcast_shapes(*(part.places.shape for part in self.parts.values())))

    @property
    def adjacent(self) -> bool:
        """Whether the dimensions lie side by side; else the new ones come first."""
        return list(self.parts) == list(range(min(self.parts), min(self.parts) + len(self.parts)))

    @property
    def right(self) -> int:
        """How many dimensions follow the new ones."""
        count = len(self.shape)
        return count - max(self.parts) - 1 if self.adjacent else count - len(self.parts)

    def moved(self, place: int) -> int:
        """Return where a dimension that is not indexed comes to lie, from the right."""
        behind = sum(d not in self.parts for d in range(place, len(self.shape)))
        return -behind - (self.width if self.adjacent and min(self.parts) > place else 0)


def indexed(call: Call, outs: Sequence[Any]) -> Found:
    """Advanced indexing: masks, and indices of some dimensions."""
    index, tag = Index.of(call), call.tag("self")
    by_rows = {part.tag for part in index.parts.values() if isinstance(part.tag, Rows)}
    if tag is None and len(by_rows) == 1 and index.width:  # rows of a table
        row = by_rows.pop()
        assert isinstance(row, Rows)
        return [replace(row, dim=row.dim - index.right)]
    if not isinstance(tag, Rows):
        return [tag]
    place = len(index.shape) + tag.dim
    if place not in index.parts:
        return [replace(tag, dim=index.moved(place))]
    part = index.parts[place]
    if index.width != 1 or part.places.ndim != 1 or len(part.places) > MOST_PLACES:
        return [None]
    picked = _picked(tag, [p // tag.inner % len(tag.rows) for p in part.places.tolist()], part)
    others = [p.tag for p in index.parts.values() if not p.masks and isinstance(p.tag, Rows)]
    agree = all(other.rows == picked.rows for other in others)
    return [replace(picked, dim=-index.right - 1, inner=1) if agree else call.coupled()]


def _picked(tag: Rows, places: list[int], by: Part) -> Rows:
    """Return the tag of the samples at ``places``: ``by`` may choose each by itself."""
    picked = some(tag, places)
    own = isinstance(by.tag, Rows) and by.tag.seen == tag.seen
    each_for_itself = own and (by.masks or by.tag.rows == picked.rows)  # type: ignore[union-attr]
    return replace(picked, seen=tag.seen) if each_for_itself else picked


def index_select(call: Call, outs: Sequence[Any]) -> Found:
    """An index of one dimension."""
    tag, shape = call.tag("self"), tuple(call.named["self"].shape)
    by = Part(call.named["index"], call.tag("index"), False)
    dim = call.named["dim"] % len(shape)
    if tag is None:  # rows of a table
        return [replace(by.tag, dim=dim - len(shape)) if isinstance(by.tag, Rows) else by.tag]
    if not isinstance(tag, Rows) or dim != len(shape) + tag.dim:
        return [tag]
    if not tag.plain or len(tag.rows) != shape[dim]:
        return [None]
    return [_picked(tag, by.places.tolist(), by)]


def masked_select(call: Call, outs: Sequence[Any]) -> Found:
    """The elements for which a mask is true."""
    tag, mask = each(call, call.named["self"]), call.named["mask"]
    if not isinstance(tag, Rows) or tuple(mask.shape) != tuple(call.named["self"].shape):
        return [tag if isinstance(tag, Coupled) else None]
    left = _where(mask, tag)
    return [left and replace(left, dim=-1)]


def nonzero(call: Call, outs: Sequence[Any]) -> Found:
    """The places of elements that are not zero: a row of numbers for each."""
    tag = call.first
    left = _where(call.tensors[0], tag) if isinstance(tag, Rows) else None
    return [left and replace(left, dim=-2)]


def _where(mask: Tensor, tag: Rows) -> Rows | None:
    """Return the tag of the elements that ``mask`` leaves, each looked at by itself."""
    if mask.numel() > MOST_PLACES:
        return None
    places = mask.nonzero(as_tuple=True)[tag.dim].tolist()
    rows = [place // tag.inner % len(tag.rows) for place in places]
    return replace(some(tag, rows, each=True), inner=1)


def gather(call: Call, outs: Sequence[Any]) -> Found:
    """Indices along ``dim``, elements elsewhere in their places."""
    tags = {tag for tag in call.tags if tag is not None}
    tag, count = tags.pop(), outs[0].dim()
    if tags:
        return [call.coupled()]
    if isinstance(tag, Rows) and call.named["dim"] % max(count, 1) == count + tag.dim:
        return [call.coupled() if call.tag("self") is not None else None]
    return [tag]
