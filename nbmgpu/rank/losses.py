"""What a loss is made of, read from its autograd graph.

A loss on a rank covers the rank's slice of the global batch.  How the slices'
gradients combine to the global one depends on how the loss reduces over samples:

- a mean over the slice counts by its samples, n_r / n;
- a mean over what is not ignored (``cross_entropy`` with ``ignore_index`` or class
  weights) counts by its total weight, which the graph has saved;
- a sum divided by a count of its own (``(l * mask).sum() / mask.sum()``) counts by
  that count;
- a plain sum adds up.

All four are exact.  A loss that mixes them with different weights has no single
weight, and is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor

from .masked import counted
from .nodes import ACCUMULATE, MEAN, NLL, children_of, elements_of, kind_of, shape_of, size_of

Reduction = Literal["mean", "sum"]

MAX_NODES = 400
MAX_CHAIN = 16
MAX_DIMS = 6
NORMS = {
    "LinalgVectorNorm", "Norm", "Std", "Var", "Logsumexp", "Max", "Min", "Amax", "Amin", "Median",
    "Prod",
}  # fmt: skip
"""Nodes that make one number of many in no linear way."""

REDUCING = {"Mean", "Sum"} | NORMS

BENDING = NORMS | {
    "Sqrt", "Rsqrt", "Pow", "Log", "Log1P", "Log2", "Log10", "Exp", "Expm1", "Reciprocal",
    "Sigmoid", "LogSigmoid", "Tanh", "Softplus", "Relu", "Abs", "Clamp", "ClampMin", "ClampMax",
    "Maximum", "Minimum",
}  # fmt: skip
"""Nodes after which the mean of the ranks' losses is not the loss of their mean."""

VIEWS = {
    "View", "Reshape", "ReshapeAlias", "UnsafeView", "T", "Permute", "Transpose", "Cat", "Stack",
    "Whole", "Squeeze", "Unsqueeze", "Slice", "Select",
}  # fmt: skip
ELEMENTWISE = {
    "Pow", "Abs", "Mul", "Div", "Sub", "Add", "Neg", "Sqrt", "Clamp", "Clone", "ToCopy", "Sgn",
}  # fmt: skip
"""Nodes that a penalty on parameters may pass through."""

LOWEST = {True: torch.zeros((), dtype=torch.float16), False: torch.zeros((), dtype=torch.int8)}
"""Tensors that stay as they are beside a Python number, but not beside a tensor."""

LINEAR = {"Mul", "Div", "Neg", "Add", "Sub", "Clone", "ToCopy"}
"""Nodes through which a factor of every element is a factor of their sum."""

OF_PARAMETERS = ELEMENTWISE | VIEWS
ONE_BY_ONE = VIEWS | BENDING | LINEAR


Dims = tuple[int, tuple[int, ...]]
"""Of a reduction, how many dimensions there are, and which it is over."""


@dataclass
class LossGraph:
    """The scalar part of a loss's graph: everything between it and its reductions.

    ``nodes`` maps an autograd node to its distance from the loss; ``kinds`` are the
    reductions met.  ``counts`` are the weights of means over a count of their own, with
    the number of elements that the count would be if nothing were left out (or None).
    ``bent`` says that the loss is not a linear function of its reductions (the root of a
    mean, a ratio of two sums), so that no weights make it exact.  ``multiplied``
    says, of Python numbers that multiply a sum, whether one is 1 over the rank's samples;
    None where there are none.  ``sizes`` has, for every sum that Python numbers divide, the
    one that is a size of the rank's share, or None (see ``nbmgpu.rank.chances``).
    ``scaled`` has the Python numbers that divide or multiply a penalty, a term of parameters
    alone, and are such a size, or 1 over it; ``penalised`` says that there is such a term.
    ``multiple`` says that a sum is divided by several times the samples of the share, ``old``
    that one is divided by a tensor that is older than the batch, and taken for a count, and
    ``divided`` that one is divided by anything.  ``over`` has the reductions over some dimensions
    that are taken for those over samples, ``passed`` those of another kind that are not.
    ``terms`` counts reductions over samples, ``averaged`` those that are divided by the samples
    of the share besides, as losses of single samples are.

    What is read here is the structure of the graph, which is the same on all ranks, so
    that all of them weigh alike.  Only sizes are not: on these, ranks agree.
    """

    nodes: dict[Any, int] = field(default_factory=dict)
    counts: list[tuple[Tensor, int | None]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)
    bent: bool = False
    multiplied: bool | None = None
    sizes: list[float | None] = field(default_factory=list)
    scaled: set[float] = field(default_factory=set)
    penalised: bool = False
    divided: bool = False
    multiple: bool = False
    old: bool = False
    over: list[Dims] = field(default_factory=list)
    passed: list[Dims] = field(default_factory=list)
    terms: int = 0
    averaged: int = 0

    @property
    def reduction(self) -> Reduction:
        """How slices combine: ``sum`` where nothing averages over samples."""
        return "sum" if self.kinds == {"sum"} else "mean"

    def adds_up_terms(self, even: bool) -> bool:
        """Tell whether terms are not averaged as losses of single samples are.

        ``even`` says that all ranks have as many samples.
        """
        averaged = self.averaged == self.terms and (even or self.kinds == {"mean"})
        return self.terms > 1 and not averaged

    def counts_others(self, samples: int) -> bool:
        """Tell whether a mean is over others than the share's ``samples``, beside one over these.

        Where shares differ, one of the two is weighed by the other's count.
        """
        counted = {n for _, n in self.counts if n is not None}
        return len(counted) > 1 and any(n % samples for n in counted)

    def settle(self, are_sizes: Sequence[bool]) -> None:
        """Take the numbers that divide sums for sizes, or for constants."""
        for place, is_size in enumerate(are_sizes):
            size = self.sizes[place]
            if is_size and size is not None:
                self.counts.append((torch.as_tensor(size), round(size)))
                self.kinds.add("counted")
            else:
                self.sizes[place] = None
                self.kinds.add("sum")
        if self.kinds != {"sum"}:
            self.multiplied = None

    def doubt(self) -> bool | Tensor:
        """Tell whether the terms of the loss would need different weights.

        A tensor (bool, shape ()) when the answer depends on values on a device.
        """
        if self.bent:
            return True
        if len(self.kinds) + max(len(self.counts) - 1, 0) < 2:
            return False
        if "sum" in self.kinds:
            return True
        first, elements = self.counts[0]
        if "mean" in self.kinds and elements is None:
            return True
        # Terms that leave nothing out count by samples, however many elements a sample has.
        left_out: bool | Tensor = (
            sum(count != (-1 if n is None else n) for count, n in self.counts) > 0
        )
        # Counts of the same things, such as targets and targets times classes, weigh alike.
        differ: bool | Tensor = sum(_no_multiple(count, first) for count, _ in self.counts[1:]) > 0
        if "mean" in self.kinds:
            return left_out
        return differ & left_out


@dataclass(frozen=True)
class _Path:
    """What lies between the loss and a node: divisions, and what is not linear.

    ``factors`` are Python numbers that multiply; ``factor`` is the nearest product or ratio
    of two terms, and the term the node is in.  ``stacked`` is how many scalars are averaged of
    which the node is one.
    """

    depth: int = 0
    divisors: tuple[Any, ...] = ()
    factors: tuple[float, ...] = ()
    bent: bool = False
    factor: tuple[Any, int] | None = None
    stacked: int = 0

    def through(self, node: Any, index: int = 0) -> _Path:
        """Return the path to the child ``index`` of ``node``."""
        kind, factors = kind_of(node), self.factors
        other = getattr(node, "_saved_other", None)
        if kind == "Mul" and other is not None and _is_number(other):
            factors = (*factors, float(other))
        two = kind in ("Mul", "Div") and len(children_of(node)) > 1
        factor = (node, index) if two else self.factor
        bent = self.bent or kind in BENDING
        return _Path(self.depth + 1, self._divided(node), factors, bent, factor, self.stacked)

    def within(self, inner: _Path) -> _Path:
        """Return this path with what divides or multiplies every element of a sum, as ``inner``."""
        # A share of one sample makes vectors of one element, of which ranks would differ.
        even = tuple(d for d in inner.divisors if _is_number(d) or d.ndim == 0)
        return replace(self, divisors=even, factors=inner.factors)

    def sizes(self, samples: int) -> set[float]:
        """Return the numbers on the path that are ``samples``, or 1 over it."""
        numbers = [*self.factors, *(float(d) for d in self.divisors if _is_number(d))]
        wanted = (samples, 1 / samples) if samples else ()
        return {n for n in numbers if any(math.isclose(n, w, rel_tol=1e-6) for w in wanted)}

    def _divided(self, node: Any) -> tuple[Any, ...]:
        other = getattr(node, "_saved_other", None) if kind_of(node) == "Div" else None
        return self.divisors if other is None else (*self.divisors, other)


Agree = Callable[[list[bool]], list[bool]]
"""Is told whether numbers that divide sums are sizes here; returns what holds for all ranks."""


def read_graph(
    loss: Tensor,
    samples: int,
    whole: int,
    totals: Sequence[Tensor] = (),
    agree: Agree = lambda flags: flags,
    is_old: Callable[[Tensor], bool] = lambda tensor: False,
) -> LossGraph:
    """Walk from ``loss``, of one element, to the nodes that reduce over samples.

    Args:
        loss: the tensor that ``backward()`` is called on.
        samples: samples in the rank's slice.
        whole: samples in the global batch.
        totals: counts over the global batch, the same on all ranks; a sum that is divided
            by one of them, or by a multiple, adds up over ranks.
        agree: settles with the other ranks which numbers are sizes.
        is_old: tells whether a tensor is seen to be older than the batch.
    """
    graph = LossGraph()
    sides: dict[Any, int] = {}
    queue = [(loss.grad_fn, _Path())]
    while queue and len(graph.nodes) < MAX_NODES:
        node, path = queue.pop(0)
        if node in graph.nodes or size_of(node) != 1:
            continue
        graph.nodes[node] = path.depth
        if not _reduces(node):
            below = [(child, path.through(node, i)) for i, child in enumerate(children_of(node))]
            queue += below
            ends = [inner for child, inner in below if _is_of_parameters(child, MAX_CHAIN)]
            factors = kind_of(node) in ("Mul", "Div") and len(below) > 1
            graph.penalised |= bool(ends) and not factors
            graph.scaled.update(*(inner.sizes(samples) for inner in ends))
        elif _is_penalty(node):
            graph.penalised = True
            terms = _terms(node, path) if kind_of(node) in ("Mean", "Sum") else []
            graph.scaled.update(*(inner.sizes(samples) for inner in (path, *terms)))
        else:
            for source, inner in _sources(node, path, graph):
                if kind_of(source) == "Stack":  # of scalars: each has a reduction of its own
                    scalars = children_of(source)
                    stacked = len(scalars) if kind_of(node) == "Mean" else 0
                    part = replace(inner, stacked=stacked)
                    queue += [(child, part) for child in scalars]
                    continue
                graph.terms += 1
                graph.averaged += bool(inner.sizes(samples)) or inner.stacked == samples
                divisors = [d for d in inner.divisors if not _is_total(d, totals)]
                graph.old |= not _averages(source) and any(map(is_old, _one(divisors)))
                if source is not node and _reduced_dims(source):
                    graph.over.append(_dims_of(source))
                _read_reduction(graph, source, divisors, samples, whole)
                graph.bent |= inner.bent or kind_of(source) in NORMS
                if inner.factors and graph.kinds <= {"sum"} and samples < whole:
                    graph.multiplied = graph.multiplied or _has_one_over(samples, inner.factors)
                if inner.factor is not None:  # both sides of a product reduce over samples
                    term, index = inner.factor
                    graph.bent |= sides.setdefault(term, index) != index
    graph.settle(agree([size is not None for size in graph.sizes]) if graph.sizes else [])
    return graph


def _no_multiple(count: Tensor, first: Tensor) -> Tensor:
    """Tell whether ``count`` is no multiple of ``first``, up to rounding; shape (), bool."""
    ratio = count / first
    return ~((ratio - ratio.round()).abs() <= 1e-5 * ratio.abs())


def _reduces(node: Any) -> bool:
    """Tell whether ``node`` makes one number of many."""
    return kind_of(node) in REDUCING or getattr(node, "_saved_reduction", 0) > 0


def _differ(one: Any, other: Any) -> bool:
    """Tell whether one of two reductions is a mean and the other one a sum."""
    return {kind_of(one), kind_of(other)} == {"Mean", "Sum"}


def _sources(node: Any, path: _Path, graph: LossGraph) -> list[tuple[Any, _Path]]:
    """Return what decides how ``node`` counts samples: mostly ``node`` itself.

    A sum or mean may only add up the classes of what was averaged over samples before, or
    a few scalars that were stacked.  What ``graph`` remembers as passed may be it all the same,
    in an ensemble's ``.mean(1).sum(0)``: which sizes are those of samples, no rank can be sure.
    """
    if kind_of(node) not in ("Mean", "Sum"):
        return [(node, path)]
    shape = tuple(node._saved_self_sym_sizes)
    found: list[tuple[Any, _Path]] = []
    todo = [(child, path) for child in children_of(node)]
    for _ in range(MAX_CHAIN):
        if not todo:
            break
        below, inner = todo.pop(0)
        if shape_of(below) != shape:
            continue
        scalars = kind_of(below) == "Stack" and all(shape_of(c) == () for c in children_of(below))
        dims = _reduced_dims(below)
        if scalars or 0 in dims:
            found.append((below, inner))
        elif dims:
            graph.passed += [_dims_of(below)] if _differ(node, below) else []
        else:
            todo += [(child, inner.through(below, i)) for i, child in enumerate(children_of(below))]
    return found or [(node, term) for term in _terms(node, path)]


def _terms(node: Any, path: _Path) -> list[_Path]:
    """Return the path to each term that ``node`` adds up, with what divides the term before."""
    shape, found = tuple(node._saved_self_sym_sizes), []
    todo = [(child, path) for child in children_of(node)]
    for _ in range(MAX_CHAIN):
        if not todo:
            break
        below, inner = todo.pop(0)
        if kind_of(below) in LINEAR and shape_of(below) == shape:
            todo += [(child, inner.through(below, i)) for i, child in enumerate(children_of(below))]
        else:
            found.append(path.within(inner))
    return found or [path]


def _reduced_dims(node: Any) -> tuple[int, ...]:
    """Return the dimensions that a mean, sum or norm over some dimensions takes away.

    A node's list is of unsigned numbers: -1 is the largest of them.
    """
    dims = getattr(node, "_saved_dim", None) if kind_of(node) in REDUCING else None
    found = (dims,) if isinstance(dims, int) else tuple(dims or ())
    ndim = _ndim_of(node) if found else 0
    return tuple((d - 2**64 if d >= 2**63 else d) % ndim for d in found) if ndim else ()


def _read_reduction(
    graph: LossGraph, node: Any, divisors: Sequence[Any], samples: int, whole: int
) -> None:
    """Record what ``node`` reduces; a sum is divided by ``divisors`` further up."""
    mean = getattr(node, "_saved_reduction", None) == MEAN
    if mean and node.name() in NLL:
        graph.counts.append((node._saved_total_weight, node._saved_target.numel()))
        graph.kinds.add("counted")
        return
    if mean or kind_of(node) == "Mean":
        by = next((d for d in divisors if not _is_number(d) and d.numel() == 1), None)
        everything = _chosen_from(node)
        if by is not None:  # a mean over a mean, such as that of a mask
            graph.counts.append((by.detach() * elements_of(node), None))
        elif everything is not None:
            graph.counts.append((torch.as_tensor(float(elements_of(node))), everything))
        graph.kinds.add("mean" if by is None and everything is None else "counted")
        return
    numbers = [float(d) for d in divisors if _is_number(d)]
    graph.divided |= bool(divisors)
    for divisor in divisors:
        if not _is_number(divisor):
            graph.bent |= divisor.numel() != 1
            graph.counts.append((counted(divisor, node) if divisor.numel() == 1 else divisor, None))
            graph.kinds.add("counted")
            return
    if not numbers:
        graph.kinds.add("sum")
        return
    sizes = _sizes_with(samples, whole, node) - {whole}
    taken = next((d for d in numbers if _is_one_of(d, sizes)), None)
    graph.sizes.append(taken)
    several = any(d > samples > 0 and d % samples == 0 for d in numbers)
    graph.multiple |= taken is None and several


def _sizes_with(samples: int, whole: int, node: Any) -> set[int]:
    """Return what a mean over the samples may divide a sum by: their number, times what each has.

    That may be all of its dimensions or some: tokens, or pixels and not channels.  What could as
    well be such a number for the whole batch is one only by the first dimensions.
    """
    shape = tuple(getattr(node, "_saved_self_sym_sizes", ()))
    sizes = {samples, elements_of(node)}
    if not samples or len(shape) > MAX_DIMS or not shape or shape[0] % samples:
        return sizes
    first = [math.prod(shape[1:number]) for number in range(1, len(shape) + 1)]
    some = {math.prod(d) for n in range(len(shape)) for d in combinations(shape[1:], n)}
    of_whole = {whole * (shape[0] // samples) * number for number in first}
    return sizes | {shape[0] * n for n in first} | ({shape[0] * n for n in some} - of_whole)


def _chosen_from(node: Any) -> int | None:
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
            if all(_is_of_parameters(child, MAX_CHAIN) for child in children_of(below)):
                continue  # rows of a table
            first = below._saved_indices[0]
            masks = first is not None and first.dtype == torch.bool  # of samples, not of columns
            everything = math.prod(below._saved_self_sym_sizes) if masks else size
            return everything * count // max(size, 1)
        if kind_of(below) in ("Select", "Slice"):
            todo += [(child, size_of(child)) for child in children_of(below)]
        elif kind_of(below) in ONE_BY_ONE:
            todo += [(child, size) for child in children_of(below)]
    return None


def _averages(node: Any) -> bool:
    return kind_of(node) == "Mean" or getattr(node, "_saved_reduction", None) == MEAN


def _dims_of(node: Any) -> Dims:
    """Return what a reduction is over."""
    return _ndim_of(node), _reduced_dims(node)


def _ndim_of(node: Any) -> int:
    """Return how many dimensions a reduction has been given."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    return len(node._saved_self.shape if sizes is None else sizes)


def _one(divisors: Sequence[Any]) -> list[Tensor]:
    """Return the divisors that are tensors of one element."""
    return [d for d in divisors if not _is_number(d) and d.numel() == 1]


def _is_one_of(number: float, sizes: set[int]) -> bool:
    return any(math.isclose(number, size, rel_tol=1e-6) for size in sizes)


def _has_one_over(samples: int, factors: Sequence[float]) -> bool:
    """Tell whether one of ``factors`` is 1 / ``samples``."""
    return any(math.isclose(factor * samples, 1.0, rel_tol=1e-6) for factor in factors)


def _is_total(divisor: Any, totals: Sequence[Tensor]) -> bool:
    """Tell whether a divisor is one of ``totals``, or an integer multiple of one.

    Only for other tensors than these themselves are values read.
    """
    if not totals or not isinstance(divisor, Tensor) or divisor.numel() != 1:
        return False
    if any(divisor is total or divisor.data_ptr() == total.data_ptr() for total in totals):
        return True
    ratios = [float(divisor) / max(float(total), 1e-30) for total in totals]
    return any(r > 0.5 and math.isclose(r, round(r), rel_tol=1e-6) for r in ratios)


def _is_number(value: Any) -> bool:
    """Tell whether a saved operand was a Python number: such a tensor yields to any other."""
    if not isinstance(value, torch.Tensor):
        return True
    if value.ndim or value.device.type != "cpu":
        return False
    low = LOWEST[value.dtype.is_floating_point]
    return torch.result_type(low, value) == low.dtype != value.dtype


def _is_penalty(node: Any) -> bool:
    """Tell whether a reduction is over parameters (weight decay), not over samples."""
    return all(_is_of_parameters(child, MAX_CHAIN) for child in children_of(node))


def _is_of_parameters(node: Any, limit: int) -> bool:
    """Tell whether every element that ``node`` gives stands for one of a parameter."""
    kind = kind_of(node)
    if kind == ACCUMULATE:
        return True
    if not limit or kind not in OF_PARAMETERS or not (children := children_of(node)):
        return False
    alike = kind in VIEWS or all(shape_of(child) == shape_of(node) for child in children)
    return alike and all(_is_of_parameters(child, limit - 1) for child in children)
