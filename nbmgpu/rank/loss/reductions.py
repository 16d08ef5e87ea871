"""Reductions in an autograd graph: which nodes reduce to one element, over which dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from .autograd_nodes import (
    ACCUMULATE_GRAD,
    CUSTOM,
    MAX_VISITS,
    REDUCTION_MEAN,
    input_nodes,
    input_numel,
    input_shape,
    op_name,
    output_numel,
    output_shape,
)
from .loss_graph import ReducedDims

NONLINEAR_REDUCTIONS = {
    "LinalgVectorNorm", "Norm", "Std", "Var", "Logsumexp", "Max", "Min", "Amax", "Amin", "Median",
    "Prod", "Dist",
}  # fmt: skip
"""Reductions that are not linear in their input."""

REDUCTIONS = {"Mean", "Sum", "Nansum"} | NONLINEAR_REDUCTIONS

NONLINEAR_OPS = NONLINEAR_REDUCTIONS | {
    "Sqrt", "Rsqrt", "Pow", "Log", "Log1P", "Log2", "Log10", "Exp", "Expm1", "Reciprocal",
    "Sigmoid", "LogSigmoid", "Tanh", "Softplus", "Relu", "Abs", "Clamp", "ClampMin", "ClampMax",
    "Maximum", "Minimum",
}  # fmt: skip
"""Operations after which the mean of the ranks' losses is not the loss of their mean."""

VIEW_OPS = {
    "View", "Reshape", "ReshapeAlias", "UnsafeView", "T", "Permute", "Transpose", "Cat", "Stack",
    "Squeeze", "Unsqueeze", "Slice", "Select", "Unbind",
    f"{CUSTOM}GatherFull", f"{CUSTOM}GatherParts",
}  # fmt: skip

ELEMENTWISE_OPS = {
    "Pow", "Abs", "Mul", "Div", "Sub", "Add", "Neg", "Sqrt", "Clamp", "Clone", "ToCopy", "Sgn",
}  # fmt: skip
"""Operations that a penalty on parameters may contain."""

LINEAR_OPS = {"Mul", "Div", "Neg", "Add", "Sub", "Clone", "ToCopy"}
"""Operations through which a factor of every element is a factor of their sum."""

ACTIVATIONS = {
    "Exp", "Expm1", "Log", "Log1P", "Log2", "Log10", "Softplus", "Sigmoid", "LogSigmoid", "Tanh",
    "Relu", "Rsqrt", "Reciprocal", "ClampMin", "ClampMax",
}  # fmt: skip

PARAMETER_OPS = ELEMENTWISE_OPS | VIEW_OPS | ACTIVATIONS
"""Operations that keep one element per element of a parameter."""

MATMULS = {"Mm", "Bmm", "Mv", "Dot", "Vdot"}
"""Operations that multiply and sum along a dimension."""

UNREDUCED_OPS = VIEW_OPS | NONLINEAR_OPS | LINEAR_OPS


def reduces(node: Any) -> bool:
    """Return whether ``node``, whose output has one element, reduces many elements to it."""
    if op_name(node) in MATMULS:  # with a layer's weights, it is the output for a single sample
        children = input_nodes(node)
        return not any(is_of_parameters(child, MAX_VISITS) for child in children)
    if op_name(node) in ("Mean", "Sum") and input_shape(node) == () and _input_is_reduced(node):
        return False
    return op_name(node) in REDUCTIONS or getattr(node, "_saved_reduction", 0) > 0


def _input_is_reduced(node: Any) -> bool:
    """Return whether the scalar input of ``node`` is the result of a reduction.

    Otherwise it is the output for a single sample.
    """
    return first_reduction(input_nodes(node), lambda child: output_shape(child) == ()) is not None


def first_reduction(nodes: list[Any], passes: Callable[[Any], bool]) -> Any | None:
    """Return the first reduction to shape () at or below ``nodes``, or None.

    The search continues through nodes for which ``passes`` returns True.
    """
    queue = [*nodes]
    for _ in range(MAX_VISITS):
        if not queue:
            break
        node = queue.pop(0)
        if passes(node):
            if output_shape(node) == () and reduces(node):
                return node
            queue += input_nodes(node)
    return None


def hides_reduction(node: Any) -> bool:
    """Return whether ``node``, whose output has one element, is a custom function of larger inputs.

    How such a function reduces is unknown.
    """
    return op_name(node).startswith(CUSTOM) and any(output_numel(c) != 1 for c in input_nodes(node))


def is_mean(node: Any) -> bool:
    """Return whether a reduction is a mean."""
    return op_name(node) == "Mean" or getattr(node, "_saved_reduction", None) == REDUCTION_MEAN


def is_mean_and_sum(one: Any, other: Any) -> bool:
    """Return whether one of two reductions is a mean and the other one a sum."""
    return {op_name(one), op_name(other)} == {"Mean", "Sum"}


def reduced_dims(node: Any) -> tuple[int, ...]:
    """Return the dimensions, counted from 0, over which a mean, sum or norm reduces.

    Empty for a reduction over all dimensions.  Nodes save dimensions as unsigned numbers: -1 is the
    largest one.
    """
    dims = getattr(node, "_saved_dim", None) if op_name(node) in REDUCTIONS else None
    found = (dims,) if isinstance(dims, int) else tuple(dims or ())
    ndim = _input_ndim(node) if found else 0
    return tuple((d - 2**64 if d >= 2**63 else d) % ndim for d in found) if ndim else ()


def dims_of(node: Any) -> ReducedDims:
    """Return the number of dimensions of a reduction's input, and those that it reduces."""
    return _input_ndim(node), reduced_dims(node)


def _input_ndim(node: Any) -> int:
    """Return the number of dimensions of a reduction's input."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return len(node._saved_self.shape if sizes is None else sizes)


def numel_before_selection(node: Any) -> int | None:
    """Return the elements from which the input of the mean ``node`` was selected.

    None if neither an index nor a mask selects elements: the mean is over the shard's samples.
    """
    count = input_numel(node)
    queue = [(child, count) for child in input_nodes(node)]
    for _ in range(MAX_VISITS):
        if not queue:
            return None
        child, size = queue.pop(0)
        if output_numel(child) != size:
            continue
        if op_name(child) == "MaskedSelect":
            return int(child._saved_mask.numel()) * count // max(size, 1)
        if op_name(child) == "Index":
            if all(is_of_parameters(each, MAX_VISITS) for each in input_nodes(child)):
                continue  # rows of an embedding table
            first = child._saved_indices[0]
            masks = first is not None and first.dtype == torch.bool  # of samples, not of columns
            numel = math.prod(child._saved_self_sym_sizes) if masks else size
            return numel * count // max(size, 1)
        if op_name(child) == "PackPaddedSequence":  # padding is excluded
            return int(math.prod(child._saved_input_sym_sizes)) * count // max(size, 1)
        if op_name(child) == "Take" or _selects_rows(child):
            return count
        if op_name(child) in ("Select", "Slice"):
            queue += [(each, output_numel(each)) for each in input_nodes(child)]
        elif op_name(child) in UNREDUCED_OPS:
            queue += [(each, size) for each in input_nodes(child)]
    return None


def _selects_rows(node: Any) -> bool:
    """Return whether ``node`` selects rows by index, except from an embedding table."""
    if op_name(node) != "IndexSelect" or node._saved_dim != 0:
        return False
    return not all(is_of_parameters(child, MAX_VISITS) for child in input_nodes(node))


def is_penalty(node: Any) -> bool:
    """Return whether a reduction is over parameters (weight decay) instead of samples."""
    return all(is_of_parameters(child, MAX_VISITS) for child in input_nodes(node))


def is_of_parameters(node: Any, max_depth: int) -> bool:
    """Return whether each element of the node's output belongs to one element of a parameter."""
    op = op_name(node)
    if op == ACCUMULATE_GRAD:
        return True
    if not max_depth or not (children := input_nodes(node)):
        return False
    if op in MATMULS:
        one_to_one = len(children) == 2  # otherwise one operand is data, which has no gradient
    else:
        same = all(output_shape(child) == output_shape(node) for child in children)
        one_to_one = op in VIEW_OPS or (op in PARAMETER_OPS and same)
    return one_to_one and all(is_of_parameters(child, max_depth - 1) for child in children)
