"""Does a sum add up nothing on this rank, because a mask leaves nothing of its share?

``(losses * mask).sum() / mask.sum().clamp(min=1)`` divides by 1 where nothing is left.  On one
device that is nearly never so, but on a rank it may well be; and a rank that has nothing to
count must not count 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .autograd_nodes import MAX_CHAIN, NLL, children_of, kind_of, size_of

THROUGH = {
    "Mul", "Div", "Neg", "Clone", "ToCopy", "Sum", "Mean", "Where", "MaskedFill", "View",
    "UnsafeView", "Reshape", "ReshapeAlias", "T", "Permute", "Transpose", "Squeeze", "Unsqueeze",
}  # fmt: skip
"""Nodes that give nothing where they are given nothing."""

NEXT_TO_NOTHING = 1e-30
"""What such a rank counts: nothing beside any other, and still 0 of 1 where all have nothing."""


def counted(divisor: Tensor, node: Any) -> Tensor:
    """Return what a rank counts for whose sum ``node`` is divided by ``divisor``, one number."""
    divisor = divisor.detach()
    if divisor.device.type == "cpu" and divisor.item() != 1:
        return divisor
    nothing = _adds_nothing(node)
    if nothing is None:
        return divisor
    return torch.where(nothing.to(divisor.device) & (divisor == 1), NEXT_TO_NOTHING, divisor)


def _adds_nothing(node: Any) -> Tensor | None:
    """Tell whether all that ``node`` adds up is masked out; None where no mask is to be seen."""
    answers, todo = [], children_of(node)
    for _ in range(MAX_CHAIN):
        if not todo:
            break
        below = todo.pop(0)
        if (answer := _masks_all(below)) is not None:
            answers.append(answer)
        if kind_of(below) in THROUGH:
            todo += children_of(below)
    return torch.stack(answers).any() if answers else None


def _masks_all(node: Any) -> Tensor | None:
    """Tell whether ``node`` leaves nothing of what it is given; None if it is no mask."""
    kind = kind_of(node)
    if kind == "Mul":
        factors = (getattr(node, name, None) for name in ("_saved_self", "_saved_other"))
        masks = [f for f in factors if isinstance(f, Tensor) and f.ndim and not f.requires_grad]
        return (masks[0] == 0).all() if masks else None
    if kind == "Where":
        kept, other = (child for child, _ in node.next_functions[-2:])
        if kept is not None and other is not None:
            return None
        condition: Tensor = node._saved_condition
        return (condition if kept is None else ~condition).all()
    if kind == "MaskedFill":
        mask: Tensor = node._saved_mask
        return mask.all()
    if node.name() in NLL and node._saved_reduction == 0:
        targets: Tensor = node._saved_target
        ignored: int = node._saved_ignore_index  # without its sign
        return (targets == (ignored if ignored < 2**63 else ignored - 2**64)).all()
    if kind in ("MaskedSelect", "Index") and not size_of(node):
        return torch.ones((), dtype=torch.bool)
    return None
