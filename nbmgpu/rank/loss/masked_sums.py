"""Detects sums whose mask excludes all samples of this rank's shard.

``(losses * mask).sum() / mask.sum().clamp(min=1)`` divides by 1 where the mask is all zero.  On one
device that is rare, but a single shard may well be masked completely.  Such a rank has no samples
to count, and must not count 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .autograd_nodes import MAX_VISITS, NLL_NODES, input_nodes, op_name, output_numel

ZERO_PRESERVING_OPS = {
    "Mul", "Div", "Neg", "Clone", "ToCopy", "Sum", "Mean", "Where", "MaskedFill", "View",
    "UnsafeView", "Reshape", "ReshapeAlias", "T", "Permute", "Transpose", "Squeeze", "Unsqueeze",
}  # fmt: skip
"""Operations whose output is zero or empty if their input is."""

NEGLIGIBLE = 1e-30
"""Count of a completely masked rank: negligible compared to any other count, but not 0, so that the
mean is 0 and not nan where all ranks are completely masked."""


def effective_count(divisor: Tensor, node: Any) -> Tensor:
    """Return the count of a rank whose sum ``node`` is divided by ``divisor``, one element.

    It is ``divisor``, or ``NEGLIGIBLE`` if the divisor is 1 and the sum is completely masked.
    """
    divisor = divisor.detach()
    if divisor.device.type == "cpu" and divisor.item() != 1:
        return divisor
    is_masked = _is_completely_masked(node)
    if is_masked is None:
        return divisor
    return torch.where(is_masked.to(divisor.device) & (divisor == 1), NEGLIGIBLE, divisor)


def _is_completely_masked(node: Any) -> Tensor | None:
    """Return whether all elements that ``node`` adds are masked; None if no mask is found."""
    results, queue = [], input_nodes(node)
    for _ in range(MAX_VISITS):
        if not queue:
            break
        child = queue.pop(0)
        if (result := _masks_everything(child)) is not None:
            results.append(result)
        if op_name(child) in ZERO_PRESERVING_OPS:
            queue += input_nodes(child)
    return torch.stack(results).any() if results else None


def _masks_everything(node: Any) -> Tensor | None:
    """Return whether ``node`` masks its whole input (bool, shape ()); None if it is no mask."""
    op = op_name(node)
    if op == "Mul":
        factors = (getattr(node, name, None) for name in ("_saved_self", "_saved_other"))
        masks = [f for f in factors if isinstance(f, Tensor) and f.ndim and not f.requires_grad]
        return (masks[0] == 0).all() if masks else None
    if op == "Where":
        kept, other = (child for child, _ in node.next_functions[-2:])
        if kept is not None and other is not None:
            return None
        condition: Tensor = node._saved_condition
        return (condition if kept is None else ~condition).all()
    if op == "MaskedFill":
        mask: Tensor = node._saved_mask
        return mask.all()
    if node.name() in NLL_NODES and node._saved_reduction == 0:
        targets: Tensor = node._saved_target
        ignore_index: int = node._saved_ignore_index  # saved as unsigned
        return (targets == (ignore_index if ignore_index < 2**63 else ignore_index - 2**64)).all()
    if op in ("MaskedSelect", "Index") and not output_numel(node):
        return torch.ones((), dtype=torch.bool)
    return None
