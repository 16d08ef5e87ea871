"""Records the terms of a loss: each reduction over samples, its kind and its count."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .autograd_nodes import NLL_NODES, REDUCTION_MEAN, input_numel, input_shape, op_name
from .divisors import Divisor, Meaning, ScaledMean
from .graph_path import GraphPath
from .loss_graph import LossGraph
from .masked_sums import NEGLIGIBLE, effective_count
from .reductions import (
    NONLINEAR_REDUCTIONS,
    dims_of,
    is_mean,
    numel_before_selection,
    reduced_dims,
)
from .saved_sizes import (
    has_inverse,
    is_global_count,
    is_number,
    is_one_of,
    mean_divisors,
    ratios,
    scalar_tensors,
)
from .size_inference import BatchSizeInference


@dataclass
class TermRecorder:
    """Adds terms to a ``LossGraph``; for most fields, see the arguments of ``read_graph``.

    Attributes:
        graph: the graph that terms are added to.
        operands: for each product of two terms, the operand that was found to contain a reduction.
        scaled_means: means that Python numbers multiply; recorded by ``add_scaled_means``.
    """

    samples: int
    global_samples: int
    global_counts: Sequence[Tensor]
    is_old: Callable[[Tensor], bool]
    size_inference: BatchSizeInference
    graph: LossGraph
    operands: dict[Any, int] = field(default_factory=dict)
    scaled_means: list[ScaledMean] = field(default_factory=list)

    @property
    def is_split(self) -> bool:
        """Whether the rank's shard has some, but not all samples of the batch."""
        return 0 < self.samples < self.global_samples

    def add(self, source: Any, path: GraphPath, is_full: bool) -> None:
        """Record a reduction over samples; ``is_full`` if it is the final reduction of its term."""
        graph, samples = self.graph, self.samples
        graph.terms.append((source, path))
        graph.num_averaged += bool(path.shard_sizes(samples)) or path.num_stacked == samples
        divisors = [d for d in path.divisors if not is_global_count(d, self.global_counts)]
        by_older = not is_mean(source) and any(map(self.is_old, scalar_tensors(divisors)))
        graph.divisions.by_older_tensor |= by_older
        if not is_full and reduced_dims(source):
            graph.partial_reductions.over_samples.append(dims_of(source))
        graph.factors.mean_by_size |= self._is_mean_by_elements(source, path)
        is_partial_mean = is_mean(source) and self.is_split
        equals_size = is_partial_mean and self._equals_size(path)
        if is_partial_mean and path.factors:
            is_ratio = bool(scalar_tensors(path.divisors))
            self.scaled_means.append(ScaledMean(source, divisors, is_ratio, equals_size))
        else:
            self._add_reduction(source, divisors)
        graph.is_nonlinear |= path.is_nonlinear or op_name(source) in NONLINEAR_REDUCTIONS
        if samples < self.global_samples:
            factors = graph.factors
            factors.ratios.update(ratios(samples, path.factors))
            if path.factors and graph.kinds <= {"sum"}:
                factors.inverse_size = factors.inverse_size or has_inverse(samples, path.factors)
        if path.product is not None:  # both operands of a product may reduce over samples
            product, index = path.product
            graph.is_nonlinear |= self.operands.setdefault(product, index) != index

    def _equals_size(self, path: GraphPath) -> bool:
        """Return whether a mean is multiplied by the samples of the shard, as far as is seen here.

        Sets ``mean_by_size`` if it is divided by them.
        """
        samples = self.samples
        numbers = [float(d) for d in path.divisors if is_number(d)]
        num_factors = sum(is_one_of(n, {samples}) for n in path.factors)
        num_divisors = sum(is_one_of(n, {samples}) for n in numbers)
        # (a.mean() * len(a) + b.mean() * len(b)) / (len(a) + len(b)) is a mean of all.
        multiples = [n for n in numbers if is_one_of(n, {2 * samples, 3 * samples})]
        cancelled = any(
            n <= self.global_samples and not self.size_inference.is_constant(n) for n in multiples
        )
        multiplied = num_factors > num_divisors
        if not (num_factors or num_divisors) or (multiplied and cancelled):
            return False
        # Also asked if they cancel out: one may be the size and the other a constant.
        if not self.size_inference.is_shard_size(samples):
            return False
        self.graph.factors.mean_by_size |= num_divisors > num_factors
        return multiplied

    def add_scaled_means(self, meanings: Sequence[Meaning]) -> None:
        """Record each of ``scaled_means`` as the sum that it is if its factor means a size."""
        graph = self.graph
        for mean, meaning in zip(self.scaled_means, meanings, strict=True):
            node = mean.node
            if meaning != "size":
                self._add_reduction(node, mean.divisors)
                continue
            graph.kinds.add("sum")
            # The mean is not over all samples if some are excluded.
            if node.name() in NLL_NODES:
                excludes = node._saved_total_weight != node._saved_target.numel()
                graph.has_ignored.append(excludes)
            selected = mean.is_ratio or numel_before_selection(node) is not None
            graph.is_nonlinear |= selected or self._has_variable_rows(node)

    def _is_mean_by_elements(self, source: Any, path: GraphPath) -> bool:
        """Return whether a mean is multiplied or divided by the elements or rows of its input."""
        if not is_mean(source) or not self.is_split:
            return False
        sizes = {input_numel(source), *input_shape(source)[:1]} - {0, 1, self.samples}
        numbers = [*path.factors, *(float(d) for d in path.divisors if is_number(d))]
        found = {float(size) for size in sizes if any(is_one_of(n, {size}) for n in numbers)}
        return bool(found) and self.size_inference.inference.is_size("mean", found)

    def _has_variable_rows(self, node: Any) -> bool:
        """Return whether the rows of a reduction's input are not a multiple of the samples."""
        return any(rows % max(self.samples, 1) for rows in input_shape(node)[:1])

    def _add_reduction(self, node: Any, divisors: Sequence[Any]) -> None:
        """Record the kind and count of the reduction ``node``, divided by ``divisors``."""
        graph = self.graph
        has_mean_option = getattr(node, "_saved_reduction", None) == REDUCTION_MEAN
        if has_mean_option and node.name() in NLL_NODES:
            graph.counts.append((node._saved_total_weight, node._saved_target.numel()))
            graph.kinds.add("weighted mean")
        elif has_mean_option or op_name(node) == "Mean":
            self._add_mean(node, divisors)
        else:
            self._add_sum(node, divisors)

    def _add_mean(self, node: Any, divisors: Sequence[Any]) -> None:
        graph = self.graph
        graph.averages_other_rows |= input_shape(node)[:1] != (self.samples,)
        by_tensor = next((d for d in divisors if not is_number(d) and d.numel() == 1), None)
        numel = numel_before_selection(node)
        if by_tensor is not None:  # a mean divided by a mean, such as that of a mask
            graph.counts.append((by_tensor.detach() * input_numel(node), None))
        elif numel is not None:
            graph.counts.append((torch.as_tensor(float(input_numel(node))), numel))
        graph.kinds.add("mean" if by_tensor is None and numel is None else "weighted mean")

    def _add_sum(self, node: Any, divisors: Sequence[Any]) -> None:
        graph, samples = self.graph, self.samples
        numbers = [float(d) for d in divisors if is_number(d)]
        graph.divisions.exist |= bool(divisors)
        for divisor in divisors:
            if not is_number(divisor):
                if divisor.numel() == 1:
                    graph.counts.append((effective_count(divisor, node), None))
                    graph.kinds.add("weighted mean")
                else:  # a count for each class: several ratios
                    graph.is_nonlinear = True
                    graph.kinds.add("mean")
                graph.divisions.by_tensor = True
                graph.factors.mean_by_size |= any(is_one_of(n, {samples}) for n in numbers)
                return
        if not numbers:
            graph.kinds.add("sum")
            return
        self._add_divided_sum(node, numbers)

    def _add_divided_sum(self, node: Any, numbers: Sequence[float]) -> None:
        """Record a sum that is divided by Python numbers."""
        samples, global_samples = self.samples, self.global_samples
        sizes = mean_divisors(samples, global_samples, node) - {global_samples}
        ambiguous = samples < global_samples == input_numel(node)
        if ambiguous and any(is_one_of(d, {global_samples}) for d in numbers):
            sizes |= {global_samples} if self.size_inference.is_numel() else set()
        size = next((d for d in numbers if is_one_of(d, sizes)), None)
        variable_rows = size is not None and self._has_variable_rows(node)
        value = math.prod(numbers)
        if value == 1:  # may be max(1, 0)
            value = float(effective_count(torch.ones(()), node))
        if not input_numel(node):  # an empty sum counts nothing, whatever divides it
            size, variable_rows = NEGLIGIBLE if value else 0.0, True
        divisions = self.graph.divisions
        divisions.numbers.append(Divisor(value, size, node, variable_rows))
        multiples = any(d > samples > 0 and d % samples == 0 for d in numbers)
        divisions.by_multiple |= size is None and multiples
