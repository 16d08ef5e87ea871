"""Losses that stand side by side in one tensor: those of several tasks, or of single samples.

``torch.stack(losses)``, ``torch.cat`` of numbers, and ``terms[i] = loss`` make a vector of which a
sum or mean follows.  The losses of tasks have reductions of their own, and these count samples; of
the losses of single samples, the sum or mean does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .autograd_nodes import ACCUMULATE, MAX_CHAIN, added_up, children_of, kind_of, shape_of, size_of
from .reductions import averages, first_reduction, is_of_parameters

JOINED = {"Stack", "Cat"}

WRITTEN = {"torch::autograd::CopySlices", "IndexPut"}
"""What writes into a part of a tensor."""

PART = "AsStrided"
"""The part of it, which ``terms[i] += loss`` adds to, and then writes once more."""


def losses_in(node: Any, samples: int) -> list[Any]:
    """Return the losses that ``node`` puts side by side, each over the ``samples`` of the share.

    None of them if it does something else, or where they are those of single samples.
    """
    terms = _numbers_in(node)
    return [] if terms and _are_of_samples(node, terms, samples) else terms


def written_over(node: Any) -> list[Any]:
    """Return what there was before all that has been written into parts of it."""
    while (below := _before(node)) is not None:
        node = below
    return [child for child in children_of(node) if kind_of(child) != PART]


def _before(node: Any) -> Any | None:
    """Return what wrote into the same tensor before."""
    kept = (c for c in children_of(node) if shape_of(c) == shape_of(node))
    return next((child for child in kept if kind_of(child) in WRITTEN), None)


def _numbers_in(node: Any) -> list[Any]:
    """Return the single numbers of which a tensor consists: losses, mostly."""
    if kind_of(node) not in JOINED | WRITTEN:
        return []
    found: list[Any] = []
    todo = [node]
    while todo:
        part = todo.pop()
        kind, below = kind_of(part), children_of(part)
        if kind == "Stack" and all(shape_of(child) == () for child in below):
            found += below[::-1]
        elif kind in JOINED:
            todo += below
        else:
            numbers = _written(part) if kind in WRITTEN else [part]
            if not numbers or not all(map(_is_loss, numbers)):
                return []
            found += numbers
    return found[::-1]


def _is_loss(part: Any) -> bool:
    """Tell whether a part is a single number, made of many or of parameters."""
    if size_of(part) != 1:
        return False
    return _reduction(part) is not None or is_of_parameters(part, MAX_CHAIN)


def _written(node: Any) -> list[Any]:
    """Return what has been written into a tensor, number by number; none if more at once.

    By what ``terms[i] *= 0.1`` multiplies a number in its place, nobody tells.  A mean counts
    samples all the same; a sum may have become one.
    """
    found: list[Any] = []
    changed = again = False
    while node is not None:
        before, part = _before(node), [c for c in children_of(node) if kind_of(c) == PART]
        new = [c for c in children_of(node) if c is not before and c not in part]
        if any(size_of(child) != 1 for child in new):
            return []
        found += new
        changed |= again and not new
        again, node = bool(part), before
    ends = [end for end in map(_reduction, found) if end is not None]
    return found if not changed or all(map(averages, ends)) else []


def _are_of_samples(node: Any, terms: Sequence[Any], samples: int) -> bool:
    """Tell whether ``terms`` are the losses of single samples: there are as many of these.

    Where nothing tells, what was stacked is of tasks, and what was written or joined is not.
    """
    shape = shape_of(node)
    if not shape or samples not in (shape[0], shape[-1]):
        return False
    if samples == 1:  # one task alone would not be put beside others
        return True
    ends = (end for end in map(_reduction, terms) if end is not None)
    told = (over for end in ends if (over := _is_over(samples, end)) is not None)
    return not next(told, kind_of(node) == "Stack")


def _is_over(samples: int, end: Any) -> bool | None:
    """Tell whether the reduction ``end`` is over ``samples``, and not over one; None if unknown.

    Of what it reduces, and of what that was made of, the first that the model made tells best.
    """
    told = None
    todo = [(end, added_up(end))]
    for _ in range(MAX_CHAIN):
        if not todo:
            break
        node, shape = todo.pop(0)
        if len(shape) > 1 and shape[0] in (1, samples):
            told = shape[0] == samples
        elif len(shape) == 1 and any(map(_is_matrix, children_of(node))):
            told = False  # a layer was given one sample without a dimension for it
        below = [c for c in children_of(node) if not is_of_parameters(c, MAX_CHAIN)]
        todo += [(child, shape_of(child)) for child in below]
    return told


def _is_matrix(node: Any) -> bool:
    """Tell whether a node stands for a parameter of two dimensions, also a partitioned one."""
    if kind_of(node) != ACCUMULATE:
        return False
    return len(getattr(node.variable, "ds_shape", node.variable.shape)) == 2


def _reduction(part: Any) -> Any | None:
    """Return what made one number of many, of which ``part`` was made; None if nothing did.

    In a share of one sample, vectors have one element: these are no numbers.
    """
    return first_reduction([part], lambda node: size_of(node) == 1)
