"""Nodes of an autograd graph: their operation, their inputs, the shapes of their tensors.

A node is a ``grad_fn``.  It belongs to one operation of the forward pass, and "input" and "output"
mean those of that operation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch.autograd.function import BackwardCFunction

NLL_NODES = ("NllLossBackward0", "NllLoss2DBackward0", "NllLossNdBackward0")
MAX_VISITS = 16
"""Nodes visited by one local search.  Losses are shorter than this, models are longer."""

REDUCTION_MEAN = 1
"""Value of ``_saved_reduction`` in autograd's loss nodes (ATen's Reduction enum)."""

ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"

CUSTOM = "custom "
"""Prefix of the names of ``torch.autograd.Function`` classes, whose computation is unknown."""

_op_names: dict[type, str] = {}


def op_name(node: Any) -> str:
    """Return the name of a node's operation: ``Mul`` for ``MulBackward0``."""
    name = _op_names.get(type(node))
    if name is None:
        name = str(node.name()).partition("Backward")[0]
        if isinstance(node, BackwardCFunction):
            name = f"{CUSTOM}{name}"
        if type(node).__name__ != "CppFunction":  # a type that many operations share
            _op_names[type(node)] = name
    return name


def input_nodes(node: Any) -> list[Any]:
    """Return the nodes of ``next_functions``: those that made the inputs of ``node``."""
    return [child for child, _ in node.next_functions if child is not None]


def leaf_tensors(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield the leaf tensors that gradients reach from the nodes ``roots``, some of them twice."""
    stack = [root for root in roots if root is not None]
    seen = set(stack)
    while stack:
        for child in input_nodes(stack.pop()):
            if op_name(child) == ACCUMULATE_GRAD:
                yield child.variable
            elif child not in seen:
                seen.add(child)
                stack.append(child)


def reaches(roots: Iterable[Any], leaf_ids: Collection[int]) -> bool:
    """Return whether gradients from ``roots`` reach a leaf tensor whose ``id`` is given."""
    return any(id(leaf) in leaf_ids for leaf in leaf_tensors(roots))


def output_shape(node: Any) -> tuple[int, ...]:
    """Return the shape of the node's output."""
    if op_name(node) == ACCUMULATE_GRAD:
        return tuple(node.variable.shape)
    metadata = node._input_metadata
    return tuple(metadata[0].shape) if metadata else (0,)


def output_numel(node: Any) -> int:
    """Return the number of elements of the node's output."""
    return math.prod(output_shape(node))


def input_shape(node: Any) -> tuple[int, ...]:
    """Return the shape of a reduction's input, or an empty tuple if the node does not save it."""
    if hasattr(node, "_saved_self_sym_sizes"):
        return tuple(node._saved_self_sym_sizes)
    saved = getattr(node, "_saved_target" if node.name() in NLL_NODES else "_saved_self", None)
    return tuple(saved.shape) if saved is not None else ()


def input_numel(node: Any) -> int:
    """Return the number of elements of a reduction's input, or 0 if the node does not save it."""
    shape = input_shape(node)
    return math.prod(shape) if shape else int(hasattr(node, "_saved_self_sym_sizes"))
