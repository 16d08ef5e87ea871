"""Nodes of an autograd graph that make one number of many: over what, and of what."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .autograd_nodes import (
    ACCUMULATE,
    MAX_CHAIN,
    MEAN,
    OWN,
    added_up,
    children_of,
    elements_of,
    kind_of,
    shape_of,
    size_of,
)
from .loss_graph import Dims

NORMS = {
    "LinalgVectorNorm", "Norm", "Std", "Var", "Logsumexp", "Max", "Min", "Amax", "Amin", "Median",
    "Prod", "Dist",
}  # fmt: skip
"""Nodes that make one number of many in no linear way."""

REDUCING = {"Mean", "Sum", "Nansum"} | NORMS

BENDING = NORMS | {
    "Sqrt", "Rsqrt", "Pow", "Log", "Log1P", "Log2", "Log10", "Exp", "Expm1", "Reciprocal",
    "Sigmoid", "LogSigmoid", "Tanh", "Softplus", "Relu", "Abs", "Clamp", "ClampMin", "ClampMax",
    "Maximum", "Minimum",
}  # fmt: skip
"""Nodes after which the mean of the ranks' losses is not the loss of their mean."""

VIEWS = {
    "View", "Reshape", "ReshapeAlias", "UnsafeView", "T", "Permute", "Transpose", "Cat", "Stack",
    f"{OWN}Whole", "Squeeze", "Unsqueeze", "Slice", "Select", "Unbind",
}  # fmt: skip

ELEMENTWISE = {
    "Pow", "Abs", "Mul", "Div", "Sub", "Add", "Neg", "Sqrt", "Clamp", "Clone", "ToCopy", "Sgn",
}  # fmt: skip
"""Nodes that a penalty on parameters may pass through."""

LINEAR = {"Mul", "Div", "Neg", "Add", "Sub", "Clone", "ToCopy"}
"""Nodes through which a factor of every element is a factor of their sum."""

CURVES = {
    "Exp", "Expm1", "Log", "Log1P", "Log2", "Log10", "Softplus", "Sigmoid", "LogSigmoid", "Tanh",
    "Relu", "Rsqrt", "Reciprocal", "ClampMin", "ClampMax",
}  # fmt: skip

OF_PARAMETERS = ELEMENTWISE | VIEWS | CURVES

PRODUCTS = {"Mm", "Bmm", "Mv", "Dot", "Vdot"}
"""Nodes that multiply and add up along a dimension."""

ONE_BY_ONE = VIEWS | BENDING | LINEAR


def reduces(node: Any) -> bool:
    """Tell whether ``node``, which gives one number, makes it of many."""
    if kind_of(node) in PRODUCTS:  # of a layer's weights, it is what a single sample gives
        children = children_of(node)
        return not any(is_of_parameters(child, MAX_CHAIN) for child in children)
    if kind_of(node) in ("Mean", "Sum") and added_up(node) == () and _is_reduced(node):
        return False
    return kind_of(node) in REDUCING or getattr(node, "_saved_reduction", 0) > 0


def _is_reduced(node: Any) -> bool:
    """Tell whether ``node``, which is of one number, is of one that a reduction has made.

    Else it is of what a single sample gives.
    """
    return first_reduction(children_of(node), lambda below: shape_of(below) == ()) is not None


def first_reduction(nodes: list[Any], passes: Callable[[Any], bool]) -> Any | None:
    """Return what made one number of many, at or below ``nodes`` through those that it ``passes``.

    None if nothing did.
    """
    todo = [*nodes]
    for _ in range(MAX_CHAIN):
        if not todo:
            break
        node = todo.pop(0)
        if passes(node):
            if shape_of(node) == () and reduces(node):
                return node
            todo += children_of(node)
    return None


def hides_reduction(node: Any) -> bool:
    """Tell whether ``node``, which gives one number, is a function that does not say of what."""
    return kind_of(node).startswith(OWN) and any(size_of(c) != 1 for c in children_of(node))


def averages(node: Any) -> bool:
    """Tell whether a reduction is a mean."""
    return kind_of(node) == "Mean" or getattr(node, "_saved_reduction", None) == MEAN


def differ(one: Any, other: Any) -> bool:
    """Tell whether one of two reductions is a mean and the other one a sum."""
    return {kind_of(one), kind_of(other)} == {"Mean", "Sum"}


def reduced_dims(node: Any) -> tuple[int, ...]:
    """Return the dimensions that a mean, sum or norm over some dimensions takes away.

    A node's list is of unsigned numbers: -1 is the largest of them.
    """
    dims = getattr(node, "_saved_dim", None) if kind_of(node) in REDUCING else None
    found = (dims,) if isinstance(dims, int) else tuple(dims or ())
    ndim = _ndim_of(node) if found else 0
    return tuple((d - 2**64 if d >= 2**63 else d) % ndim for d in found) if ndim else ()


def dims_of(node: Any) -> Dims:
    """Return what a reduction is over."""
    return _ndim_of(node), reduced_dims(node)


def _ndim_of(node: Any) -> int:
    """Return how many dimensions a reduction has been given."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return len(node._saved_self.shape if sizes is None else sizes)


def chosen_from(node: Any) -> int | None:
    """Return of how many elements the mean ``node`` takes those that an index or a mask left.

    None where there is neither: then the mean is over the samples of the share.
    """
    count = elements_of(node)
    todo = [(child, count) for child in children_of(node)]
    for _ in range(MAX_CHAIN):
        if not todo:
            return None
        below, size = todo.pop(0)
        if size_of(below) != size:
            continue
        if kind_of(below) == "MaskedSelect":
            return int(below._saved_mask.numel()) * count // max(size, 1)
        if kind_of(below) == "Index":
            if all(is_of_parameters(child, MAX_CHAIN) for child in children_of(below)):
                continue  # rows of a table
            first = below._saved_indices[0]
            masks = first is not None and first.dtype == torch.bool  # of samples, not of columns
            everything = math.prod(below._saved_self_sym_sizes) if masks else size
            return everything * count // max(size, 1)
        if kind_of(below) == "PackPaddedSequence":  # padding is left out
            return int(math.prod(below._saved_input_sym_sizes)) * count // max(size, 1)
        if kind_of(below) == "Take" or _takes_rows(below):
            return count
        if kind_of(below) in ("Select", "Slice"):
            todo += [(child, size_of(child)) for child in children_of(below)]
        elif kind_of(below) in ONE_BY_ONE:
            todo += [(child, size) for child in children_of(below)]
    return None


def _takes_rows(node: Any) -> bool:
    """Tell whether ``node`` takes rows by their numbers, and not those of a table."""
    if kind_of(node) != "IndexSelect" or node._saved_dim != 0:
        return False
    return not all(is_of_parameters(child, MAX_CHAIN) for child in children_of(node))


def is_penalty(node: Any) -> bool:
    """Tell whether a reduction is over parameters (weight decay), not over samples."""
    return all(is_of_parameters(child, MAX_CHAIN) for child in children_of(node))


def is_of_parameters(node: Any, limit: int) -> bool:
    """Tell whether every element that ``node`` gives stands for one of a parameter."""
    kind = kind_of(node)
    if kind == ACCUMULATE:
        return True
    if not limit or not (children := children_of(node)):
        return False
    if kind in PRODUCTS:
        alike = len(children) == 2  # else one side is data, which has no gradient
    else:
        same = all(shape_of(child) == shape_of(node) for child in children)
        alike = kind in VIEWS or (kind in OF_PARAMETERS and same)
    return alike and all(is_of_parameters(child, limit - 1) for child in children)
