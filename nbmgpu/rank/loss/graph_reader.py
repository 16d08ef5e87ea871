"""What a loss is made of, read from its autograd graph.

A loss on a rank covers the rank's share of the global batch.  How the shares'
gradients combine to the global one depends on how the loss reduces over samples:

- a mean over the share counts by its samples, n_r / n;
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
from typing import Any

import torch
from torch import Tensor

from .autograd_nodes import (
    MAX_CHAIN,
    MEAN,
    NLL,
    OWN,
    added_up,
    children_of,
    elements_of,
    kind_of,
    shape_of,
    size_of,
)
from .divisors import Divisor, Meaning
from .graph_path import Path, addends
from .loss_graph import LossGraph
from .masked_sums import NEXT_TO_NOTHING, counted
from .reductions import (
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
from .saved_sizes import has_one_over, is_number, is_one_of, is_total, ratios, scalars, sizes_with
from .size_inference import Chances, SizeQuestions
from .stacked_losses import JOINED, WRITTEN, losses_in, written_over

MAX_NODES = 400

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
    questions: SizeQuestions | None = None,
) -> LossGraph:
    """Walk from ``loss``, of one element, to the nodes that reduce over samples.

    Args:
        loss: the tensor that ``backward()`` is called on, or several.
        samples: samples in the rank's share.
        whole: samples in the global batch.
        totals: counts over the global batch, the same on all ranks; a sum that is divided
            by one of them, or by a multiple, adds up over ranks.
        agree: settles with the other ranks which numbers are sizes.
        is_old: tells whether a tensor is seen to be older than the batch.
        questions: tells of numbers that may be sizes whether they are, by the code.
    """
    reader = _Reader(samples, whole, totals, is_old, questions or SizeQuestions(Chances()))
    roots = [loss] if isinstance(loss, Tensor) else loss
    graph = reader.read([root.grad_fn for root in roots])
    if not (graph.kinds or graph.divisors or graph.penalised) and 1 < samples < whole:
        graph.unread = graph.unread or reader.last()
    kinds = tuple(kind_of(node) for node in graph.nodes) if graph.divisors else ()
    meanings = agree(kinds, graph.divisors, graph.by_tensor)
    graph.settle(meanings)
    constants = [d.number for d, m in zip(graph.divisors, meanings, strict=True) if m == "constant"]
    graph.by_multiple |= not all(map(reader.questions.is_constant, constants))
    if graph.kinds != {"sum"}:
        graph.multiplied = None
    graph.mean_by_share &= (
        graph.reductions < samples
    )  # else these are losses of single samples, averaged
    return graph


@dataclass
class _Reader:
    """Reads one loss; fields as the arguments of ``read_graph``."""

    samples: int
    whole: int
    totals: Sequence[Tensor]
    is_old: Callable[[Tensor], bool]
    questions: SizeQuestions
    graph: LossGraph = field(default_factory=LossGraph)
    sides: dict[Any, int] = field(default_factory=dict)
    known: dict[Any, list[Any]] = field(default_factory=dict)

    def read(self, roots: Sequence[Any]) -> LossGraph:
        """Walk from the nodes ``roots`` to those that reduce over samples."""
        graph = self.graph
        queue = [(root, Path()) for root in roots]
        while queue and len(graph.nodes) < MAX_NODES:
            node, path = queue.pop(0)
            if node in graph.nodes or size_of(node) != 1:
                continue
            graph.nodes[node] = path.depth
            if not reduces(node):
                queue += self._pass(node, path)
            elif is_penalty(node):
                graph.penalised = True
                terms = addends(node, path) if kind_of(node) in ("Mean", "Sum") else []
                graph.scaled.update(*(inner.sizes(self.samples) for inner in (path, *terms)))
            else:
                sources = self._sources(node, path)
                if not sources:
                    queue += self._pass(node, path)
                for source, inner in sources:
                    if terms := self.losses_in(source):
                        stacked = len(terms) if kind_of(node) == "Mean" else 0
                        part = replace(inner, stacked=stacked)
                        queue += [(child, part) for child in terms]
                    else:
                        self._meet(source, inner, whole=source is node)
        return graph

    def losses_in(self, node: Any) -> list[Any]:
        """Return the losses that ``node`` puts side by side."""
        if node not in self.known:
            self.known[node] = losses_in(node, self.samples)
        return self.known[node]

    def last(self) -> str:
        """Return what makes one number of many, and is not known to."""
        ends = [n for n in self.graph.nodes if any(size_of(child) > 1 for child in children_of(n))]
        return kind_of(ends[0]) if ends else ""

    def _pass(self, node: Any, path: Path) -> list[tuple[Any, Path]]:
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
            terms = [self.losses_in(child) for child in children_of(node)]
            below += [(term, path) for each in terms for term in each]
        return below

    def _sources(self, node: Any, path: Path) -> list[tuple[Any, Path]]:
        """Return what decides how ``node`` counts samples: mostly ``node`` itself.

        A sum or mean may only add up the classes of what was averaged over samples before, or
        a few scalars that were stacked.  What the graph remembers as passed may be it all the same,
        in an ensemble's ``.mean(1).sum(0)``: which sizes are those of samples, no rank can be sure.
        """
        if kind_of(node) in PRODUCTS:
            return self._factors(node, path)
        if kind_of(node) not in ("Mean", "Sum"):
            return [(node, path)]
        shape = tuple(node._saved_self_sym_sizes)
        found: list[tuple[Any, Path]] = []
        todo = [(child, path) for child in children_of(node) if shape_of(child) == shape]
        for _ in range(MAX_CHAIN):
            if not todo:
                break
            below, inner = todo.pop(0)
            dims = reduced_dims(below)
            if 0 in dims or self.losses_in(below):
                found.append((below, inner))
            elif dims:
                self.graph.not_taken += [dims_of(below)] if differ(node, below) else []
            else:
                over = kind_of(below) in WRITTEN
                children = written_over(below) if over else children_of(below)
                alike = [(i, child) for i, child in enumerate(children) if shape_of(child) == shape]
                if not alike and kind_of(below) in VIEWS - JOINED:  # ``terms[:2]``
                    alike = [(0, child) for child in children if self.losses_in(child)]
                todo += [(child, inner if over else inner.through(below, i)) for i, child in alike]
        return found or [(node, term) for term in addends(node, path)]

    def _factors(self, node: Any, path: Path) -> list[tuple[Any, Path]]:
        """Return what decides how a product counts samples: what makes its factors, or itself.

        ``weights @ torch.stack(losses)`` adds up losses, and ``x.mean(0) @ direction`` features:
        only a product along the samples adds up these.  Nothing is returned where it is none.
        """
        found = []
        for index, child in enumerate(children_of(node)):
            below, inner = child, path.through(node, index)
            for _ in range(MAX_CHAIN):
                if 0 in reduced_dims(below) or self.losses_in(below):
                    found.append((below, inner))
                    break
                alone = children_of(below)
                if kind_of(below) not in ONE_BY_ONE or len(alone) != 1:
                    break
                below, inner = alone[0], inner.through(below)
        self.graph.bent |= len(found) > 1
        sizes = map(size_of, children_of(node))
        along = self.samples and any(size % self.samples == 0 for size in sizes)
        return found or ([(node, path)] if along else [])

    def _meet(self, source: Any, path: Path, whole: bool) -> None:
        """Record a reduction over samples, ``whole`` if it is over all that there is."""
        graph, samples = self.graph, self.samples
        graph.reductions += 1
        graph.terms.append((source, path))
        graph.averaged += bool(path.sizes(samples)) or path.stacked == samples
        divisors = [d for d in path.divisors if not is_total(d, self.totals)]
        graph.by_older |= not averages(source) and any(map(self.is_old, scalars(divisors)))
        if not whole and reduced_dims(source):
            graph.taken.append(dims_of(source))
        if not self._is_mean_by_size(source, path):
            self._read_reduction(source, divisors)
        graph.bent |= path.bent or kind_of(source) in NORMS
        if samples < self.whole:
            graph.ratios.update(ratios(samples, path.factors))
            if path.factors and graph.kinds <= {"sum"}:
                graph.multiplied = graph.multiplied or has_one_over(samples, path.factors)
        if path.factor is not None:  # both sides of a product reduce over samples
            term, index = path.factor
            graph.bent |= self.sides.setdefault(term, index) != index

    def _is_mean_by_size(self, source: Any, path: Path) -> bool:
        """Take a mean times the samples of the share for the sum that it is."""
        samples = self.samples
        if not averages(source) or not 0 < samples < self.whole:
            return False
        below = [float(d) for d in path.divisors if is_number(d)]
        by = sum(is_one_of(n, {samples}) for n in path.factors)
        over = sum(is_one_of(n, {samples}) for n in below)
        # (a.mean() * len(a) + b.mean() * len(b)) / (len(a) + len(b)): that is a mean of all.
        several = [n for n in below if is_one_of(n, {2 * samples, 3 * samples})]
        cancelled = any(n <= self.whole and not self.questions.is_constant(n) for n in several)
        if by == over or (by > over and cancelled) or not self.questions.asks_for_share(samples):
            return False
        self.graph.mean_by_share |= over > by
        if by > over:
            self.graph.kinds.add("sum")
            # It is no mean over all samples where some are left out.
            if source.name() in NLL:
                counts = source._saved_total_weight != source._saved_target.numel()
                self.graph.ignored.append(counts)
            chosen = chosen_from(source) is not None or bool(scalars(path.divisors))
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
            by = next((d for d in divisors if not is_number(d) and d.numel() == 1), None)
            everything = chosen_from(node)
            if by is not None:  # a mean over a mean, such as that of a mask
                graph.counts.append((by.detach() * elements_of(node), None))
            elif everything is not None:
                graph.counts.append((torch.as_tensor(float(elements_of(node))), everything))
            graph.kinds.add("mean" if by is None and everything is None else "counted")
            return
        numbers = [float(d) for d in divisors if is_number(d)]
        graph.divided |= bool(divisors)
        for divisor in divisors:
            if not is_number(divisor):
                if divisor.numel() == 1:
                    graph.counts.append((counted(divisor, node), None))
                    graph.kinds.add("counted")
                else:  # a count for each class: ratios, of which there are several
                    graph.bent = True
                    graph.kinds.add("mean")
                graph.by_tensor = True
                graph.mean_by_share |= any(is_one_of(n, {samples}) for n in numbers)
                return
        if not numbers:
            graph.kinds.add("sum")
            return
        sizes = sizes_with(samples, whole, node) - {whole}
        either = samples < whole == elements_of(node)
        if either and any(is_one_of(d, {whole}) for d in numbers):
            sizes |= {whole} if self.questions.asks_for_elements() else set()
        taken = next((d for d in numbers if is_one_of(d, sizes)), None)
        rows = taken is not None and self._has_other_rows(node)
        number = math.prod(numbers)
        if number == 1:  # of max(1, 0), perhaps
            number = float(counted(torch.ones(()), node))
        if not elements_of(node):  # whatever it is divided by, that counts nothing
            taken, rows = NEXT_TO_NOTHING if number else 0.0, True
        graph.divisors.append(Divisor(number, taken, node, rows))
        several = any(d > samples > 0 and d % samples == 0 for d in numbers)
        graph.by_multiple |= taken is None and several
