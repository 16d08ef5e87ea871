"""Nodes of an autograd graph: what they undo, the shape of what their forward gave."""

from __future__ import annotations

import math
from typing import Any

NLL = ("NllLossBackward0", "NllLoss2DBackward0", "NllLossNdBackward0")
MEAN = 1
"""Value of ``_saved_reduction`` in autograd's loss nodes (ATen's Reduction enum)."""

ACCUMULATE = "torch::autograd::AccumulateGrad"

_kinds: dict[type, str] = {}


def kind_of(node: Any) -> str:
    """Return what a node undoes: ``Mul`` for ``MulBackward0``."""
    known = _kinds.get(type(node))
    if known is None:
        known = str(node.name()).partition("Backward")[0]
        if type(node).__name__ != "CppFunction":  # which many kinds share
            _kinds[type(node)] = known
    return known


def children_of(node: Any) -> list[Any]:
    """Return the nodes whose gradients ``node`` computes."""
    return [child for child, _ in node.next_functions if child is not None]


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of what the node's forward gave."""
    if kind_of(node) == ACCUMULATE:
        return tuple(node.variable.shape)
    metadata = node._input_metadata
    return tuple(metadata[0].shape) if metadata else (0,)


def size_of(node: Any) -> int:
    """Return how many elements the node's forward gave."""
    return math.prod(shape_of(node))


def elements_of(node: Any) -> int:
    """Return how many elements a sum adds up."""
    if hasattr(node, "_saved_self_sym_sizes"):
        return math.prod(node._saved_self_sym_sizes)
    saved = getattr(node, "_saved_target" if node.name() in NLL else "_saved_self", None)
    return saved.numel() if saved is not None else 0
