"""What has been found in the autograd graph of a loss, between the loss and its reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from .divisors import Divisor, Meaning
from .masked_sums import effective_count

if TYPE_CHECKING:
    from .graph_path import GraphPath

Reduction = Literal["mean", "sum"]

ReducedDims = tuple[int, tuple[int, ...]]
"""The number of dimensions of a reduction's input, and the dimensions that it reduces."""


@dataclass
class Divisions:
    """How the sums of a loss are divided.

    Attributes:
        exist: whether anything divides a sum.
        numbers: the Python numbers that divide sums.
        sizes: for each of ``numbers`` that is not a count, the size of the shard that it equals, or
            None (see ``nbmgpu.rank.loss.size_inference``).
        by_tensor: whether a tensor divides a sum.
        by_older_tensor: whether a tensor that is older than the batch does; it is used as a count.
        by_multiple: whether a sum is divided by a multiple of the samples of the shard.
    """

    exist: bool = False
    numbers: list[Divisor] = field(default_factory=list)
    sizes: list[float | None] = field(default_factory=list)
    by_tensor: bool = False
    by_older_tensor: bool = False
    by_multiple: bool = False


@dataclass
class ScaleFactors:
    """The numbers that scale the terms of a loss, and how they relate to the size of the shard.

    Attributes:
        inverse_size: whether one of the Python numbers that multiply a sum is 1 over the samples of
            the shard; None without such numbers.
        ratios: the Python numbers that multiply a term of samples, and may be a ratio of the
            samples of the shard and another integer.
        of_penalty: the Python numbers that divide or multiply a term of parameters alone, and equal
            the samples of the shard or 1 over them.
        mean_by_size: whether a mean is divided by the samples of the shard.
    """

    inverse_size: bool | None = None
    ratios: set[float] = field(default_factory=set)
    of_penalty: set[float] = field(default_factory=set)
    mean_by_size: bool = False


@dataclass
class PartialReductions:
    """Reductions over some dimensions only, classified by whether they are over samples.

    Attributes:
        over_samples: those that are classified as reductions over samples.
        over_others: reductions of the other kind (mean or sum) that are not.
    """

    over_samples: list[ReducedDims] = field(default_factory=list)
    over_others: list[ReducedDims] = field(default_factory=list)

    def contradict(self, observed: Mapping[ReducedDims, bool]) -> bool:
        """Return whether a reduction was observed to be of the other class.

        Args:
            observed: for normalized dimensions, whether a reduction of them is over samples.
        """
        return any(
            observed.get(normalize_dims(dims)) is False for dims in self.over_samples
        ) or any(observed.get(normalize_dims(dims)) for dims in self.over_others)


@dataclass
class LossGraph:
    """The scalar part of a loss's graph: everything between the loss and its reductions.

    The structure of the graph is the same on all ranks, so all ranks derive the same weighting from
    it.  Only sizes differ; ranks agree on their meaning.

    Attributes:
        nodes: autograd nodes, and their distance from the loss.
        unknown_function: a function that made the loss and whose reduction is unknown, or "".
        kinds: how the loss reduces over samples: ``mean``, ``sum``, ``weighted mean``.
        terms: the reductions over samples, each with the path to it.
        num_averaged: number of terms that are also divided by the samples of the shard, as losses
            of single samples are.
        partial_reductions: reductions over some dimensions only.
        is_nonlinear: the loss is not a linear function of its reductions (the root of a mean, a
            ratio of two sums), so that no weights make it exact.
        counts: for each weighted mean, the sum of its weights, and the number of elements that this
            would be if no element were excluded, or None if unknown.
        has_ignored: for each mean that is multiplied by the samples of the shard, whether it
            excludes elements; tensors of shape (), bool.
        averages_other_rows: a mean is over rows other than the samples of the shard.
        has_penalty: there is a term of parameters alone.
        divisions: how sums are divided.
        factors: the numbers that scale terms.
    """

    nodes: dict[Any, int] = field(default_factory=dict)
    unknown_function: str = ""
    kinds: set[str] = field(default_factory=set)
    terms: list[tuple[Any, GraphPath]] = field(default_factory=list)
    num_averaged: int = 0
    partial_reductions: PartialReductions = field(default_factory=PartialReductions)
    is_nonlinear: bool = False
    counts: list[tuple[Tensor, int | None]] = field(default_factory=list)
    has_ignored: list[Tensor] = field(default_factory=list)
    averages_other_rows: bool = False
    has_penalty: bool = False
    divisions: Divisions = field(default_factory=Divisions)
    factors: ScaleFactors = field(default_factory=ScaleFactors)

    @property
    def reduction(self) -> Reduction:
        """How the ranks' losses combine: ``sum`` if nothing averages over samples."""
        return "sum" if self.kinds == {"sum"} else "mean"

    def sums_terms(self, even: bool) -> bool:
        """Return whether several terms are added without being averaged over samples.

        Args:
            even: whether all ranks have the same number of samples.
        """
        averaged = self.num_averaged == len(self.terms) and (even or self.kinds == {"mean"})
        return len(self.terms) > 1 and not averaged

    def mixes_counts(self, samples: int) -> bool:
        """Return whether means are over different numbers of elements, not all per sample.

        Where shards are uneven, one mean is then weighted by the count of another.
        """
        numels = {n for _, n in self.counts if n is not None}
        return len(numels) > 1 and any(n % samples for n in numels)

    def other_row_counts(self, samples: int) -> tuple[int, ...]:
        """Return the number of elements of each mean that may not be over the shard's ``samples``.

        Empty if no other term might need a different weight.  With one sample, that may be any.
        """
        numels = [n for _, n in self.counts if n is not None]
        several = "mean" in self.kinds or len(set(numels)) > 1
        return tuple(n for n in numels if (n % samples or samples == 1) and several)

    def apply_meanings(self, meanings: Sequence[Meaning]) -> None:
        """Classify the numbers that divide sums by the ``meanings`` on which ranks agreed."""
        divisions = self.divisions
        for divisor, meaning in zip(divisions.numbers, meanings, strict=True):
            if meaning == "constant":
                self.kinds.add("sum")
                divisions.sizes.append(None)
                continue
            self.kinds.add("weighted mean")
            if meaning == "size" and divisor.shard_size is not None:
                numel = None if divisor.has_variable_rows else round(divisor.shard_size)
                self.counts.append((torch.as_tensor(divisor.shard_size), numel))
                divisions.sizes.append(divisor.shard_size)
            else:
                value = torch.tensor(divisor.value, dtype=torch.float64)
                self.counts.append((effective_count(value, divisor.node), None))

    def needs_different_weights(self) -> bool | Tensor:
        """Return whether the terms of the loss would need different weights.

        A tensor (bool, shape ()) if the answer depends on values on a device.
        """
        if self.is_nonlinear:
            return True
        if self.has_ignored:
            return torch.stack(self.has_ignored).any()
        if len(self.kinds) + max(len(self.counts) - 1, 0) < 2:
            return False
        if "sum" in self.kinds:
            return True
        first, numel = self.counts[0]
        if "mean" in self.kinds and numel is None:
            return True
        # Terms that exclude nothing count by samples, however many elements a sample has.
        excludes: bool | Tensor = (
            sum(count != (n or -1) for count, n in self.counts) > 0  # 0 rows: none was selected
        )
        # Counts of the same elements, such as targets and targets times classes, weigh alike.
        differ: bool | Tensor = (
            sum(_is_no_multiple(count, first) for count, _ in self.counts[1:]) > 0
        )
        if "mean" in self.kinds:
            return excludes
        return differ & excludes


def normalize_dims(reduction: ReducedDims) -> ReducedDims:
    """Return a reduction's (ndim, dims) with sorted, nonnegative dims, for comparison."""
    ndim, dims = reduction
    return ndim, tuple(sorted(dim % ndim for dim in dims))


def _is_no_multiple(count: Tensor, first: Tensor) -> Tensor:
    """Return whether ``count`` is no multiple of ``first``, up to rounding; shape (), bool.

    0 is none: a rank that counts nothing needs another weight than one that counts something.
    """
    ratio = count / first
    return ~(((ratio - ratio.round()).abs() <= 1e-5 * ratio.abs()) & (ratio != 0))
