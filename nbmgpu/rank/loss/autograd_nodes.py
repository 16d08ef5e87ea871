"""Nodes of an autograd graph: what they undo, the shape of what their forward gave."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch.autograd.function import BackwardCFunction

NLL = ("NllLossBackward0", "NllLoss2DBackward0", "NllLossNdBackward0")
MAX_CHAIN = 16
"""Nodes that are looked at from one on, in one direction: losses are shorter, models longer."""

MEAN = 1
"""Value of ``_saved_reduction`` in autograd's loss nodes (ATen's Reduction enum)."""

ACCUMULATE = "torch::autograd::AccumulateGrad"

OWN = "own "
"""How kinds of ``torch.autograd.Function`` begin: what these do is not known."""

_kinds: dict[type, str] = {}


def kind_of(node: Any) -> str:
    """Return what a node undoes: ``Mul`` for ``MulBackward0``."""
    known = _kinds.get(type(node))
    if known is None:
        known = str(node.name()).partition("Backward")[0]
        if isinstance(node, BackwardCFunction):
            known = f"{OWN}{known}"
        if type(node).__name__ != "CppFunction":  # which many kinds share
            _kinds[type(node)] = known
    return known


def children_of(node: Any) -> list[Any]:
    """Return the nodes whose gradients ``node`` computes."""
    return [child for child, _ in node.next_functions if child is not None]


def leaves_of(roots: Iterable[Any]) -> Iterator[Any]:
    """Yield the tensors that gradients get to from ``roots``, some of them more than once."""
    todo = [root for root in roots if root is not None]
    seen = set(todo)
    while todo:
        for child in children_of(todo.pop()):
            if kind_of(child) == ACCUMULATE:
                yield child.variable
            elif child not in seen:
                seen.add(child)
                todo.append(child)


def reaches(roots: Iterable[Any], leaves: Collection[int]) -> bool:
    """Tell whether gradients get from ``roots`` to one of the tensors of these ids."""
    return any(id(leaf) in leaves for leaf in leaves_of(roots))


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of what the node's forward gave."""
    if kind_of(node) == ACCUMULATE:
        return tuple(node.variable.shape)
    metadata = node._input_metadata
    return tuple(metadata[0].shape) if metadata else (0,)


def size_of(node: Any) -> int:
    """Return how many elements the node's forward gave."""
    return math.prod(shape_of(node))


def added_up(node: Any) -> tuple[int, ...]:
    """Return the shape of what a sum adds up, empty where it does not tell."""
    if hasattr(node, "_saved_self_sym_sizes"):
        return tuple(node._saved_self_sym_sizes)
    saved = getattr(node, "_saved_target" if node.name() in NLL else "_saved_self", None)
    return tuple(saved.shape) if saved is not None else ()


def elements_of(node: Any) -> int:
    """Return how many elements a sum adds up, 0 where it does not tell."""
    shape = added_up(node)
    return math.prod(shape) if shape else int(hasattr(node, "_saved_self_sym_sizes"))
