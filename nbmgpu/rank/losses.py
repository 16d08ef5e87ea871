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
from typing import Any

import torch
from torch import Tensor

from .chances import Batch, Chances
from .divisors import Divisor, Meaning
from .loss_graph import LossGraph
from .masked import NEXT_TO_NOTHING, counted
from .nodes import MEAN, NLL, OWN, added_up, children_of, elements_of, kind_of, shape_of, size_of
from .reductions import (
    BENDING,
    LINEAR,
    MAX_CHAIN,
    NORMS,
    ONE_BY_ONE,
    PRODUCTS,
    VIEWS,
    averages,
    chosen_from,
    differ,
    dims_of,
    hides_reduction,
    is_of_parameters,
    is_penalty,
    reduced_dims,
    reduces,
)
from .terms import JOINED, WRITTEN, terms_of, written_over

MAX_NODES = 400

MAX_DIMS = 6

LOWEST = {True: torch.zeros((), dtype=torch.float16), False: torch.zeros((), dtype=torch.int8)}
"""Tensors that stay as they are beside a Python number, but not beside a tensor."""


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


Terms = Callable[[Any], list[Any]]
"""Returns the losses that a node puts side by side."""

Agree = Callable[[tuple[str, ...], list[Divisor], bool], list[Meaning]]
"""Is told the kinds of a loss's nodes, the numbers that divide its sums, and whether tensors divide
some, too; says what the numbers mean."""


def alone(kinds: tuple[str, ...], divisors: list[Divisor], counts: bool) -> list[Meaning]:
    """Take each number for what it looks like on this rank."""
    return [divisor.alone for divisor in divisors]


def read_graph(
    loss: Tensor | Sequence[Tensor],
    samples: int,
    whole: int,
    totals: Sequence[Tensor] = (),
    agree: Agree = alone,
    is_old: Callable[[Tensor], bool] = lambda tensor: False,
    batch: Batch | None = None,
) -> LossGraph:
    """Walk from ``loss``, of one element, to the nodes that reduce over samples.

    Args:
        loss: the tensor that ``backward()`` is called on, or several.
        samples: samples in the rank's slice.
        whole: samples in the global batch.
        totals: counts over the global batch, the same on all ranks; a sum that is divided
            by one of them, or by a multiple, adds up over ranks.
        agree: settles with the other ranks which numbers are sizes.
        is_old: tells whether a tensor is seen to be older than the batch.
        batch: tells of numbers that may be sizes whether they are, by the code.
    """
    reader = _Reader(samples, whole, totals, is_old, batch or Batch(Chances()))
    roots = [loss] if isinstance(loss, Tensor) else loss
    graph = reader.read([root.grad_fn for root in roots])
    if not (graph.kinds or graph.divisors or graph.penalised) and 1 < samples < whole:
        graph.unread = graph.unread or reader.last()
    kinds = tuple(kind_of(node) for node in graph.nodes) if graph.divisors else ()
    meanings = agree(kinds, graph.divisors, graph.by_tensor)
    graph.settle(meanings)
    constants = [d.number for d, m in zip(graph.divisors, meanings, strict=True) if m == "constant"]
    graph.multiple |= not all(map(reader.batch.is_constant, constants))
    if graph.kinds != {"sum"}:
        graph.multiplied = None
    graph.sized &= graph.terms < samples  # else these are losses of single samples, averaged
    return graph


@dataclass
class _Reader:
    """Reads one loss; fields as the arguments of ``read_graph``."""

    samples: int
    whole: int
    totals: Sequence[Tensor]
    is_old: Callable[[Tensor], bool]
    batch: Batch
    graph: LossGraph = field(default_factory=LossGraph)
    sides: dict[Any, int] = field(default_factory=dict)
    known: dict[Any, list[Any]] = field(default_factory=dict)

    def read(self, roots: Sequence[Any]) -> LossGraph:
        """Walk from the nodes ``roots`` to those that reduce over samples."""
        graph = self.graph
        queue = [(root, _Path()) for root in roots]
        while queue and len(graph.nodes) < MAX_NODES:
            node, path = queue.pop(0)
            if node in graph.nodes or size_of(node) != 1:
                continue
            graph.nodes[node] = path.depth
            if not reduces(node):
                queue += self._pass(node, path)
            elif is_penalty(node):
                graph.penalised = True
                terms = _terms(node, path) if kind_of(node) in ("Mean", "Sum") else []
                graph.scaled.update(*(inner.sizes(self.samples) for inner in (path, *terms)))
            else:
                sources = _sources(node, path, graph, self.samples, self.terms)
                if not sources:
                    queue += self._pass(node, path)
                for source, inner in sources:
                    if terms := self.terms(source):
                        stacked = len(terms) if kind_of(node) == "Mean" else 0
                        part = replace(inner, stacked=stacked)
                        queue += [(child, part) for child in terms]
                    else:
                        self._meet(source, inner, whole=source is node)
        return graph

    def terms(self, node: Any) -> list[Any]:
        """Return the losses that ``node`` puts side by side."""
        if node not in self.known:
            self.known[node] = terms_of(node, self.samples)
        return self.known[node]

    def last(self) -> str:
        """Return what makes one number of many, and is not known to."""
        ends = [n for n in self.graph.nodes if any(size_of(child) > 1 for child in children_of(n))]
        return kind_of(ends[0]) if ends else ""

    def _pass(self, node: Any, path: _Path) -> list[tuple[Any, _Path]]:
        """Go through a node that reduces nothing; return what is below."""
        graph = self.graph
        if hides_reduction(node):
            graph.unread = kind_of(node).removeprefix(OWN)
        below = [(child, path.through(node, i)) for i, child in enumerate(children_of(node))]
        ends = [inner for child, inner in below if is_of_parameters(child, MAX_CHAIN)]
        factors = kind_of(node) in ("Mul", "Div") and len(below) > 1
        graph.penalised |= bool(ends) and not factors
        graph.scaled.update(*(inner.sizes(self.samples) for inner in ends))
        if kind_of(node) in VIEWS - JOINED:  # ``terms[0]``: which of them it is, nobody tells
            terms = [self.terms(child) for child in children_of(node)]
            below += [(term, path) for each in terms for term in each]
        return below

    def _meet(self, source: Any, path: _Path, whole: bool) -> None:
        """Record a reduction over samples, ``whole`` if it is over all that there is."""
        graph, samples = self.graph, self.samples
        graph.terms += 1
        graph.averaged += bool(path.sizes(samples)) or path.stacked == samples
        divisors = [d for d in path.divisors if not _is_total(d, self.totals)]
        graph.old |= not averages(source) and any(map(self.is_old, _one(divisors)))
        if not whole and reduced_dims(source):
            graph.over.append(dims_of(source))
        if not self._is_mean_by_size(source, path):
            self._read_reduction(source, divisors)
        graph.bent |= path.bent or kind_of(source) in NORMS
        if samples < self.whole:
            graph.ratios.update(_ratios(samples, path.factors))
            if path.factors and graph.kinds <= {"sum"}:
                graph.multiplied = graph.multiplied or _has_one_over(samples, path.factors)
        if path.factor is not None:  # both sides of a product reduce over samples
            term, index = path.factor
            graph.bent |= self.sides.setdefault(term, index) != index

    def _is_mean_by_size(self, source: Any, path: _Path) -> bool:
        """Take a mean times the samples of the share for the sum that it is."""
        samples = self.samples
        if not averages(source) or not 0 < samples < self.whole:
            return False
        below = [float(d) for d in path.divisors if _is_number(d)]
        by = sum(_is_one_of(n, {samples}) for n in path.factors)
        over = sum(_is_one_of(n, {samples}) for n in below)
        # (a.mean() * len(a) + b.mean() * len(b)) / (len(a) + len(b)): that is a mean of all.
        several = [n for n in below if _is_one_of(n, {2 * samples, 3 * samples})]
        cancelled = any(n <= self.whole and not self.batch.is_constant(n) for n in several)
        if by == over or (by > over and cancelled) or not self.batch.asks_for_share(samples):
            return False
        self.graph.sized |= over > by
        if by > over:
            self.graph.kinds.add("sum")
            # It is no mean over all samples where some are left out.
            if source.name() in NLL:
                counts = source._saved_total_weight != source._saved_target.numel()
                self.graph.ignored.append(counts)
            chosen = chosen_from(source) is not None or bool(_one(path.divisors))
            self.graph.bent |= chosen or self._has_other_rows(source)
        return by > over

    def _has_other_rows(self, node: Any) -> bool:
        return any(rows % max(self.samples, 1) for rows in added_up(node)[:1])

    def _read_reduction(self, node: Any, divisors: Sequence[Any]) -> None:
        """Record what ``node`` reduces; a sum is divided by ``divisors`` further up."""
        graph, samples, whole = self.graph, self.samples, self.whole
        mean = getattr(node, "_saved_reduction", None) == MEAN
        if mean and node.name() in NLL:
            graph.counts.append((node._saved_total_weight, node._saved_target.numel()))
            graph.kinds.add("counted")
            return
        if mean or kind_of(node) == "Mean":
            graph.by_rows |= added_up(node)[:1] != (samples,)
            by = next((d for d in divisors if not _is_number(d) and d.numel() == 1), None)
            everything = chosen_from(node)
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
                graph.counts.append(
                    (counted(divisor, node) if divisor.numel() == 1 else divisor, None)
                )
                graph.kinds.add("counted")
                graph.by_tensor = True
                graph.sized |= any(_is_one_of(n, {samples}) for n in numbers)
                return
        if not numbers:
            graph.kinds.add("sum")
            return
        sizes = _sizes_with(samples, whole, node) - {whole}
        either = samples < whole == elements_of(node)
        if either and any(_is_one_of(d, {whole}) for d in numbers):
            sizes |= {whole} if self.batch.asks_for_elements() else set()
        taken = next((d for d in numbers if _is_one_of(d, sizes)), None)
        rows = taken is not None and self._has_other_rows(node)
        number = math.prod(numbers)
        if number == 1:  # of max(1, 0), perhaps
            number = float(counted(torch.ones(()), node))
        if not elements_of(node):  # whatever it is divided by, that counts nothing
            taken, rows = NEXT_TO_NOTHING if number else 0.0, True
        graph.divisors.append(Divisor(number, taken, node, rows))
        several = any(d > samples > 0 and d % samples == 0 for d in numbers)
        graph.multiple |= taken is None and several


def _sources(
    node: Any, path: _Path, graph: LossGraph, samples: int, terms: Terms
) -> list[tuple[Any, _Path]]:
    """Return what decides how ``node`` counts samples: mostly ``node`` itself.

    A sum or mean may only add up the classes of what was averaged over samples before, or
    a few scalars that were stacked.  What ``graph`` remembers as passed may be it all the same,
    in an ensemble's ``.mean(1).sum(0)``: which sizes are those of samples, no rank can be sure.
    """
    if kind_of(node) in PRODUCTS:
        return _factors(node, path, graph, samples, terms)
    if kind_of(node) not in ("Mean", "Sum"):
        return [(node, path)]
    shape = tuple(node._saved_self_sym_sizes)
    found: list[tuple[Any, _Path]] = []
    todo = [(child, path) for child in children_of(node) if shape_of(child) == shape]
    for _ in range(MAX_CHAIN):
        if not todo:
            break
        below, inner = todo.pop(0)
        dims = reduced_dims(below)
        if 0 in dims or terms(below):
            found.append((below, inner))
        elif dims:
            graph.passed += [dims_of(below)] if differ(node, below) else []
        else:
            over = kind_of(below) in WRITTEN
            children = written_over(below) if over else children_of(below)
            alike = [(i, child) for i, child in enumerate(children) if shape_of(child) == shape]
            if not alike and kind_of(below) in VIEWS - JOINED:  # ``terms[:2]``
                alike = [(0, child) for child in children if terms(child)]
            todo += [(child, inner if over else inner.through(below, i)) for i, child in alike]
    return found or [(node, term) for term in _terms(node, path)]


def _factors(
    node: Any, path: _Path, graph: LossGraph, samples: int, terms: Terms
) -> list[tuple[Any, _Path]]:
    """Return what decides how a product counts samples: what makes its factors, or itself.

    ``weights @ torch.stack(losses)`` adds up losses, and ``x.mean(0) @ direction`` features: only
    a product along the samples adds up these.  Nothing is returned where it is none.
    """
    found = []
    for index, child in enumerate(children_of(node)):
        below, inner = child, path.through(node, index)
        for _ in range(MAX_CHAIN):
            if 0 in reduced_dims(below) or terms(below):
                found.append((below, inner))
                break
            alone = children_of(below)
            if kind_of(below) not in ONE_BY_ONE or len(alone) != 1:
                break
            below, inner = alone[0], inner.through(below)
    graph.bent |= len(found) > 1
    along = samples and any(size_of(child) % samples == 0 for child in children_of(node))
    return found or ([(node, path)] if along else [])


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


def _sizes_with(samples: int, whole: int, node: Any) -> set[int]:
    """Return what a mean over the samples may divide a sum by: their number, times what each has.

    That may be all of its dimensions or some: tokens, or pixels and not channels.  What could as
    well be such a number for the whole batch is one only by the first dimensions.
    """
    shape = added_up(node)
    sizes = {samples, elements_of(node)}
    if not samples or len(shape) > MAX_DIMS or not shape:
        return sizes
    first = [math.prod(shape[1:number]) for number in range(1, len(shape) + 1)]
    if shape[0] % samples:  # rows that were chosen, or joined
        return sizes | {shape[0] * n for n in first}
    some = {math.prod(d) for n in range(len(shape)) for d in combinations(shape[1:], n)}
    of_whole = {whole * (shape[0] // samples) * number for number in first}
    return sizes | {shape[0] * n for n in first} | ({shape[0] * n for n in some} - of_whole)


def _one(divisors: Sequence[Any]) -> list[Tensor]:
    """Return the divisors that are tensors of one element."""
    return [d for d in divisors if not _is_number(d) and d.numel() == 1]


def _is_one_of(number: float, sizes: set[int]) -> bool:
    return any(math.isclose(number, size, rel_tol=1e-6) for size in sizes)


def _has_one_over(samples: int, factors: Sequence[float]) -> bool:
    """Tell whether one of ``factors`` is 1 / ``samples``."""
    return any(math.isclose(factor * samples, 1.0, rel_tol=1e-6) for factor in factors)


def _ratios(samples: int, factors: Sequence[float]) -> set[float]:
    """Return those of ``factors`` that may be a whole number by ``samples``, or the other way."""
    others = (f for f in factors if f > 0 and not _is_one_of(f, {1, samples}))
    both = ((f, f * samples, samples / f) for f in others if not math.isclose(f * samples, 1))
    return {f for f, *numbers in both if any(map(_is_whole, numbers))}


def _is_whole(number: float) -> bool:
    return math.isclose(number, round(number), rel_tol=1e-9)


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
