"""Reads from the autograd graph of a loss how it reduces over samples.

A loss on a rank covers the rank's shard of the global batch.  How the gradients of the shards
combine to the global one depends on the reduction:

- a mean over the shard is weighted by its samples, n_r / n;
- a mean over elements that are not ignored (``cross_entropy`` with ``ignore_index`` or class
  weights) is weighted by its total weight, which the graph has saved;
- a sum divided by its own count (``(l * mask).sum() / mask.sum()``) is weighted by that count;
- a plain sum adds up.

All four are exact.  A loss that mixes them with different weights has no single weight, and a
notice reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from .autograd_nodes import (
    CUSTOM,
    MAX_VISITS,
    input_nodes,
    op_name,
    output_numel,
    output_shape,
)
from .divisors import Divisor, Meaning
from .graph_path import GraphPath, term_paths
from .loss_graph import LossGraph
from .reductions import (
    MATMULS,
    UNREDUCED_OPS,
    VIEW_OPS,
    dims_of,
    hides_reduction,
    is_mean_and_sum,
    is_of_parameters,
    is_penalty,
    reduced_dims,
    reduces,
)
from .size_inference import BatchSizeInference, SizeInference
from .stacked_losses import CONCATENATIONS, INPLACE_WRITES, nodes_before_writes, stacked_losses
from .term_recorder import TermRecorder

MAX_NODES = 400

AgreeOnDivisors = Callable[[tuple[str, ...], list[Divisor], bool], list[Meaning]]
"""Receives the operations of a loss, the numbers that divide its sums or multiply its means, and
whether tensors divide some sums; returns the meanings of the numbers."""


def local_meanings(
    op_names: tuple[str, ...], divisors: list[Divisor], by_tensor: bool
) -> list[Meaning]:
    """Classify each number as far as this rank can see; an ``AgreeOnDivisors``."""
    return [divisor.local_meaning for divisor in divisors]


def read_graph(
    loss: Tensor | Sequence[Tensor],
    samples: int,
    global_samples: int,
    global_counts: Sequence[Tensor] = (),
    agree: AgreeOnDivisors = local_meanings,
    is_old: Callable[[Tensor], bool] = lambda tensor: False,
    size_inference: BatchSizeInference | None = None,
) -> LossGraph:
    """Traverse the graph from ``loss`` to the nodes that reduce over samples.

    Args:
        loss: the tensor of one element that ``backward()`` is called on, or several.
        samples: number of samples in the rank's shard.
        global_samples: number of samples in the global batch.
        global_counts: counts over the global batch, the same on all ranks; a sum that is divided by
            one of them, or by a multiple, adds up over ranks.
        agree: agrees with the other ranks which numbers are sizes.
        is_old: returns whether a tensor is known to be older than the batch.
        size_inference: classifies numbers that may be sizes by the code of the notebook.
    """
    size_inference = size_inference or BatchSizeInference(SizeInference())
    recorder = TermRecorder(
        samples, global_samples, global_counts, is_old, size_inference, LossGraph()
    )
    reader = _GraphReader(recorder)
    roots = [loss] if isinstance(loss, Tensor) else loss
    graph = reader.read([root.grad_fn for root in roots])
    divisions, factors = graph.divisions, graph.factors
    found = [*divisions.numbers, *(mean.factor for mean in recorder.scaled_means)]
    if not (graph.kinds or found or graph.has_penalty) and 1 < samples < global_samples:
        graph.unknown_function = graph.unknown_function or reader.unknown_reduction()
    op_names = tuple(op_name(node) for node in graph.nodes) if found else ()
    all_meanings = agree(op_names, found, divisions.by_tensor)
    meanings = all_meanings[: len(divisions.numbers)]
    graph.apply_meanings(meanings)
    recorder.add_scaled_means(all_meanings[len(meanings) :])
    pairs = zip(divisions.numbers, meanings, strict=True)
    constants = [divisor.value for divisor, meaning in pairs if meaning == "constant"]
    divisions.by_multiple |= not all(map(size_inference.is_constant, constants))
    if graph.kinds != {"sum"}:
        factors.inverse_size = None
    # With as many terms as samples, these are losses of single samples that are averaged.
    factors.mean_by_size &= len(graph.terms) < samples
    return graph


@dataclass
class _GraphReader:
    """Traverses the graph of one loss.

    Attributes:
        recorder: records the terms that are found.
        stacked: cached results of ``stacked_losses``.
    """

    recorder: TermRecorder
    stacked: dict[Any, list[Any]] = field(default_factory=dict)

    @property
    def graph(self) -> LossGraph:
        """What has been found."""
        return self.recorder.graph

    @property
    def samples(self) -> int:
        """The number of samples in the rank's shard."""
        return self.recorder.samples

    def read(self, roots: Sequence[Any]) -> LossGraph:
        """Traverse the graph breadth-first from ``roots`` to the nodes that reduce over samples."""
        graph = self.graph
        queue = [(root, GraphPath()) for root in roots]
        while queue and len(graph.nodes) < MAX_NODES:
            node, path = queue.pop(0)
            if node in graph.nodes or output_numel(node) != 1:
                continue
            graph.nodes[node] = path.depth
            if not reduces(node):
                queue += self._continue_below(node, path)
            elif is_penalty(node):
                self._add_penalty(node, path)
            else:
                sources = self._sources(node, path)
                if not sources:
                    queue += self._continue_below(node, path)
                for source, inner in sources:
                    if losses := self._stacked_losses(source):
                        num_stacked = len(losses) if op_name(node) == "Mean" else 0
                        outer = replace(inner, num_stacked=num_stacked)
                        queue += [(loss, outer) for loss in losses]
                    else:
                        self.recorder.add(source, inner, is_full=source is node)
        return graph

    def unknown_reduction(self) -> str:
        """Return the operation that reduces to one element in an unknown way, or ""."""
        nodes = self.graph.nodes
        found = [n for n in nodes if any(output_numel(child) > 1 for child in input_nodes(n))]
        return op_name(found[0]) if found else ""

    def _stacked_losses(self, node: Any) -> list[Any]:
        """Return the losses that ``node`` combines in one tensor."""
        if node not in self.stacked:
            self.stacked[node] = stacked_losses(node, self.samples)
        return self.stacked[node]

    def _add_penalty(self, node: Any, path: GraphPath) -> None:
        """Record a reduction over parameters."""
        self.graph.has_penalty = True
        terms = term_paths(node, path) if op_name(node) in ("Mean", "Sum") else []
        sizes = (each.shard_sizes(self.samples) for each in (path, *terms))
        self.graph.factors.of_penalty.update(*sizes)

    def _continue_below(self, node: Any, path: GraphPath) -> list[tuple[Any, GraphPath]]:
        """Return the inputs of a node that does not reduce, with their paths."""
        graph = self.graph
        if hides_reduction(node):
            graph.unknown_function = op_name(node).removeprefix(CUSTOM)
        below = [(child, path.extend(node, i)) for i, child in enumerate(input_nodes(node))]
        penalties = [inner for child, inner in below if is_of_parameters(child, MAX_VISITS)]
        is_product = op_name(node) in ("Mul", "Div") and len(below) > 1
        graph.has_penalty |= bool(penalties) and not is_product
        graph.factors.of_penalty.update(*(inner.shard_sizes(self.samples) for inner in penalties))
        if op_name(node) in VIEW_OPS - CONCATENATIONS:  # ``terms[0]``: the index is unknown
            losses = [self._stacked_losses(child) for child in input_nodes(node)]
            below += [(loss, path) for each in losses for loss in each]
        return below

    def _sources(self, node: Any, path: GraphPath) -> list[tuple[Any, GraphPath]]:
        """Return the nodes that determine how ``node`` counts samples; usually ``node`` itself.

        A sum or mean may only add the classes of what was averaged over samples before, or a few
        scalars that were stacked.  Reductions that are passed over are recorded, because they may
        still be over samples, as in an ensemble's ``.mean(1).sum(0)``: no rank can know for certain
        which sizes are those of samples.
        """
        if op_name(node) in MATMULS:
            return self._matmul_sources(node, path)
        if op_name(node) not in ("Mean", "Sum"):
            return [(node, path)]
        shape = tuple(node._saved_self_sym_sizes)
        found: list[tuple[Any, GraphPath]] = []
        queue = [(child, path) for child in input_nodes(node) if output_shape(child) == shape]
        for _ in range(MAX_VISITS):
            if not queue:
                break
            child, inner = queue.pop(0)
            dims = reduced_dims(child)
            if 0 in dims or self._stacked_losses(child):
                found.append((child, inner))
            elif dims:
                if is_mean_and_sum(node, child):
                    self.graph.partial_reductions.over_others.append(dims_of(child))
            else:
                is_write = op_name(child) in INPLACE_WRITES
                below = nodes_before_writes(child) if is_write else input_nodes(child)
                same = [(i, each) for i, each in enumerate(below) if output_shape(each) == shape]
                if not same and op_name(child) in VIEW_OPS - CONCATENATIONS:  # ``terms[:2]``
                    same = [(0, each) for each in below if self._stacked_losses(each)]
                queue += [(each, inner if is_write else inner.extend(child, i)) for i, each in same]
        return found or [(node, term) for term in term_paths(node, path)]

    def _matmul_sources(self, node: Any, path: GraphPath) -> list[tuple[Any, GraphPath]]:
        """Return the nodes that determine how a matrix product counts samples.

        ``weights @ torch.stack(losses)`` adds losses, and ``x.mean(0) @ direction`` adds features:
        only a product along the dimension of the samples adds samples.  Empty if it is along
        another dimension and no operand contains a reduction over samples.
        """
        found = []
        for index, operand in enumerate(input_nodes(node)):
            child, inner = operand, path.extend(node, index)
            for _ in range(MAX_VISITS):
                if 0 in reduced_dims(child) or self._stacked_losses(child):
                    found.append((child, inner))
                    break
                below = input_nodes(child)
                if op_name(child) not in UNREDUCED_OPS or len(below) != 1:
                    break
                child, inner = below[0], inner.extend(child)
        self.graph.is_nonlinear |= len(found) > 1
        numels = map(output_numel, input_nodes(node))
        along_samples = self.samples and any(numel % self.samples == 0 for numel in numels)
        return found or ([(node, path)] if along_samples else [])
