"""Operations on elements, and what becomes of totals in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .op_call import Call, seen_by
from .row_tags import One, Rows, Shape, Tag, Total


def each(call: Call, out: Any) -> Tag | None:
    """Elementwise operations, and others that leave the samples where they are."""
    if not isinstance(out, Tensor):
        return None
    shape = tuple(out.shape)
    tags = [tag for tag in call.tags if tag is not None]
    rows = [(t, s) for t, s in zip(call.tags, call.shapes, strict=True) if isinstance(t, Rows)]
    if not rows:
        return single(call, tags)
    if len(rows) < len(tags):  # what belongs to a sample meets what was made of several, or of one
        return call.coupled()
    if shape == _broadcast(call.shapes):
        return rows[0][0] if len({tag for tag, _ in rows}) == 1 else call.coupled()
    tag, before = rows[0]
    place = len(before) + tag.dim
    if place < len(shape) and shape[place] == before[place]:
        return replace(tag, dim=place - len(shape))
    if -tag.dim <= len(shape) and shape[tag.dim] == before[tag.dim]:
        return tag
    return None


def _broadcast(shapes: Sequence[Shape]) -> Shape | None:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def single(call: Call, tags: Sequence[Tag]) -> Tag | None:
    """Operations on what belongs to one sample each, and on totals."""
    if len(set(tags)) == 1 and isinstance(tags[0], One):
        return tags[0]
    if call.name in ASKS:
        return None
    total = replace(together(tags), beside=_adds_others(call))
    totals = sum(isinstance(tag, Total) for tag in tags)
    if call.name in LINEAR or (call.name in CAREFUL and totals == len(tags)):
        return total
    if call.name == "mul" and len(tags) == 1:
        return total
    if call.name == "div" and isinstance(call.tag("self"), Total | One):
        # A total divided by a count: what weighs ranks by such counts knows how to.
        by = call.named["other"]
        if call.tag("other") is None or (by.numel() == 1 and not by.requires_grad):
            return total
    return call.coupled()


def together(tags: Sequence[Tag]) -> Total:
    """Return the tag of a sum of totals and of what single samples have."""
    totals = [tag for tag in tags if isinstance(tag, Total)]
    apart = len({tag.seen for tag in totals}) > 1 or any(tag.apart for tag in totals)
    return Total(seen_by(tags), any(tag.chosen for tag in totals), apart=apart)


def _adds_others(call: Call) -> bool:
    """Tell whether a total has, or gets, a term that is trained and of no sample."""
    given = [*zip(call.tensors, call.tags, strict=True)]
    others = call.name in ("add", "sub") and any(
        tag is None and tensor.requires_grad for tensor, tag in given
    )
    return others or any(isinstance(tag, Total) and tag.beside for _, tag in given)


def loss(call: Call, tags: Sequence[Tag]) -> Tag:
    """Loss functions that sum or average over their elements."""
    if all(isinstance(tag, One) for tag in tags) and len(set(tags)) == 1:
        return tags[0]
    rows = {(tag.inner, tag.rows) for tag in tags if isinstance(tag, Rows)}
    if len(rows) != 1 or len(set(map(type, tags))) != 1:
        return call.coupled()
    first = next(tag for tag in tags if isinstance(tag, Rows))
    return Total(seen_by(tags), call.named["reduction"] == MEAN and first.chosen)


MEAN = 1
"""ATen's number for the reduction of a loss."""


LINEAR = {"add", "sub", "rsub", "neg", "alias", "detach", "clone", "_to_copy", "lift_fresh",
          "sum", "mean"}  # fmt: skip


ASKS = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not"}
"""Questions about totals: what depends on the answer is a guard, mostly."""

CAREFUL = {"clamp", "clamp_min", "maximum", "where", "nan_to_num"}
"""What keeps a count from being zero."""
