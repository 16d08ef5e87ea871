"""Several losses in one tensor: of several tasks, or of single samples.

``torch.stack(losses)``, ``torch.cat`` of scalars, and ``terms[i] = loss`` create a vector, which a
sum or mean then reduces.  Losses of tasks have their own reductions, and these count samples.  For
losses of single samples, the final sum or mean counts samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .autograd_nodes import (
    ACCUMULATE_GRAD,
    MAX_VISITS,
    input_nodes,
    input_shape,
    op_name,
    output_numel,
    output_shape,
)
from .reductions import first_reduction, is_mean, is_of_parameters

CONCATENATIONS = {"Stack", "Cat"}

INPLACE_WRITES = {"torch::autograd::CopySlices", "IndexPut"}
"""Operations that write into a part of a tensor."""

SLICE = "AsStrided"
"""Reads the part of a tensor that ``terms[i] += loss`` adds to before it writes it again."""


def stacked_losses(node: Any, samples: int) -> list[Any]:
    """Return the losses that ``node`` combines in one tensor, each over the shard's ``samples``.

    Empty if it does something else, or if they are the losses of single samples.
    """
    terms = _scalar_elements(node)
    return [] if terms and _are_per_sample(node, terms, samples) else terms


def nodes_before_writes(node: Any) -> list[Any]:
    """Return the inputs of a tensor before any in-place write into parts of it."""
    while (earlier := _earlier_write(node)) is not None:
        node = earlier
    return [child for child in input_nodes(node) if op_name(child) != SLICE]


def _earlier_write(node: Any) -> Any | None:
    """Return the previous in-place write into the same tensor."""
    same_shape = (c for c in input_nodes(node) if output_shape(c) == output_shape(node))
    return next((child for child in same_shape if op_name(child) in INPLACE_WRITES), None)


def _scalar_elements(node: Any) -> list[Any]:
    """Return the nodes of the scalars that a tensor is made of, usually losses."""
    if op_name(node) not in CONCATENATIONS | INPLACE_WRITES:
        return []
    found: list[Any] = []
    stack = [node]
    while stack:
        part = stack.pop()
        op, children = op_name(part), input_nodes(part)
        if op == "Stack" and all(output_shape(child) == () for child in children):
            found += children[::-1]
        elif op in CONCATENATIONS:
            stack += children
        else:
            scalars = _written_scalars(part) if op in INPLACE_WRITES else [part]
            if not scalars or not all(map(_is_loss, scalars)):
                return []
            found += scalars
    return found[::-1]


def _is_loss(part: Any) -> bool:
    """Return whether a part is one element, reduced from many or made of parameters."""
    if output_numel(part) != 1:
        return False
    return _reduction_of(part) is not None or is_of_parameters(part, MAX_VISITS)


def _written_scalars(node: Any) -> list[Any]:
    """Return the scalars written into a tensor one by one; empty if a write has more elements.

    The factor of ``terms[i] *= 0.1`` is unknown.  It does not matter for means, which still count
    samples, but a sum may have become a mean by it.
    """
    found: list[Any] = []
    scaled = reads_slice = False
    while node is not None:
        earlier = _earlier_write(node)
        slices = [c for c in input_nodes(node) if op_name(c) == SLICE]
        written = [c for c in input_nodes(node) if c is not earlier and c not in slices]
        if any(output_numel(child) != 1 for child in written):
            return []
        found += written
        scaled |= reads_slice and not written
        reads_slice, node = bool(slices), earlier
    reductions = [each for each in map(_reduction_of, found) if each is not None]
    return found if not scaled or all(map(is_mean, reductions)) else []


def _are_per_sample(node: Any, terms: Sequence[Any], samples: int) -> bool:
    """Return whether ``terms`` are the losses of single samples, as many as there are samples.

    If their graphs do not show it, stacked terms are of tasks; written and concatenated ones are of
    samples.
    """
    shape = output_shape(node)
    if not shape or samples not in (shape[0], shape[-1]):
        return False
    if samples == 1:  # the loss of a single task would not be combined with others
        return True
    reductions = (each for each in map(_reduction_of, terms) if each is not None)
    known = (over for each in reductions if (over := _is_over_samples(samples, each)) is not None)
    return not next(known, op_name(node) == "Stack")


def _is_over_samples(samples: int, reduction: Any) -> bool | None:
    """Return whether ``reduction`` is over ``samples``, and not over a single one; None if unknown.

    The shapes of its input and of earlier tensors show it; the earliest one that the model made is
    the most reliable.
    """
    result = None
    queue = [(reduction, input_shape(reduction))]
    for _ in range(MAX_VISITS):
        if not queue:
            break
        node, shape = queue.pop(0)
        if len(shape) > 1 and shape[0] in (1, samples):
            result = shape[0] == samples
        elif len(shape) == 1 and any(map(_is_matrix, input_nodes(node))):
            result = False  # a layer received one sample without a batch dimension
        children = [c for c in input_nodes(node) if not is_of_parameters(c, MAX_VISITS)]
        queue += [(child, output_shape(child)) for child in children]
    return result


def _is_matrix(node: Any) -> bool:
    """Return whether a node is a parameter of two dimensions, including partitioned ones."""
    if op_name(node) != ACCUMULATE_GRAD:
        return False
    return len(getattr(node.variable, "ds_shape", node.variable.shape)) == 2


def _reduction_of(part: Any) -> Any | None:
    """Return the reduction from which the scalar ``part`` was made, or None.

    In a shard of one sample, vectors have one element, too; these are not scalars.
    """
    return first_reduction([part], lambda node: output_numel(node) == 1)
