"""Tags: which samples of the batch the parts of a tensor belong to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Batched:
    """A tensor with a batch dimension.

    Attributes:
        dim: the batch dimension, counted from the right: -1 is the last.
        block_size: consecutive elements along ``dim`` that belong to one sample.  It is greater
            than 1 if the batch dimension was flattened with others, as in
            (samples * tokens, features).
        samples: the samples in their order along ``dim``.
        sources: all samples from which these were selected, each by its own values.
    """

    dim: int
    block_size: int
    samples: tuple[int, ...]
    sources: frozenset[int]

    def sample_stride(self, shape: Shape) -> int:
        """Return the number of elements of a tensor of ``shape`` from one sample to the next."""
        return self.block_size * math.prod(shape[len(shape) + self.dim + 1 :])

    @property
    def layout(self) -> tuple[int, tuple[int, ...]]:
        """What two tensors of the same size share along ``dim`` if their samples are aligned.

        Samples repeat along a dimension that is longer than ``samples``, as in
        ``(tokens * samples,)``; or ``samples`` has them repeated, as after ``y.repeat(tokens)``.
        """
        count = len(self.samples)
        if not count or self.samples.count(self.samples[0]) == 1:  # as a rule; asked for each loss
            return self.block_size, self.samples
        periods = (n for n in range(1, count) if not count % n)
        repeats = (n for n in periods if self.samples == self.samples[:n] * (count // n))
        return self.block_size, self.samples[: next(repeats, count)]

    @property
    def is_subset(self) -> bool:
        """Whether these are some of the samples, each selected by its own values."""
        return len(self.samples) < len(self.sources)

    @property
    def has_all_in_order(self) -> bool:
        """Whether all samples are there, one after the other."""
        return self.samples == tuple(range(len(self.sources)))

    @property
    def one_sample_per_index(self) -> bool:
        """Whether each index along the dimension is one sample (samples may be repeated)."""
        return self.block_size == 1


@dataclass(frozen=True)
class SingleSample:
    """A tensor that belongs to one sample."""

    sample: int

    @property
    def sources(self) -> frozenset[int]:
        """The sample, as a set."""
        return frozenset((self.sample,))


@dataclass(frozen=True)
class SampleSum:
    """A sum or mean of per-sample terms.

    Attributes:
        sources: the samples.
        mean_of_subset: whether it is a mean over a selected subset of the samples.
        has_other_terms: whether a term that requires grad and belongs to no sample was added.
        adds_subsets: whether it adds sums over different samples.
    """

    sources: frozenset[int]
    mean_of_subset: bool = False
    has_other_terms: bool = False
    adds_subsets: bool = False


@dataclass(frozen=True)
class CrossSample:
    """A tensor whose elements depend on several samples at once.

    Attributes:
        operation: the first operator that combined samples.
        line: the line of the cell that called it, 0 if unknown.
        sources: always empty.
    """

    operation: str
    line: int = 0

    sources: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Guard:
    """A truth value that asks for nan, infinity or a count of zero.

    What depends on it is for samples that are lost anyway, or for none.
    """

    sources: frozenset[int] = frozenset()


Tag = Batched | SingleSample | SampleSum | CrossSample | Guard

K = TypeVar("K", bound=Tag)


def find_batch_dim(stride: int, samples: int, shape: Shape) -> tuple[int, int] | None:
    """Find the batch dimension after a view or reshape, which keeps the order of elements.

    Args:
        stride: number of elements from one sample to the next.
        samples: number of samples, more than one.
        shape: shape of the tensor after the view or reshape.

    Returns:
        ``dim`` and ``block_size``; None if the samples are not along one dimension.
    """
    inner = 1
    for dim in range(-1, -len(shape) - 1, -1):
        size = shape[dim]
        fits = stride % inner == 0 and stride * samples <= inner * size
        if inner <= stride and fits and size > 1:
            return dim, stride // inner
        inner *= size
    return None


def find_dim_of_one_sample(tag: Batched, before: Shape, shape: Shape) -> tuple[int, int] | None:
    """Find the batch dimension after a view or reshape of a shard of one sample.

    Its batch dimension has size 1, so sizes alone do not always tell where it is.  A dimension of
    size 1 at its place comes first.  Else it was flattened with the dimension on its left, as in
    ``(tokens * samples, features)``, or on its right, as in ``(tokens, samples * heads, features)``
    of ``nn.MultiheadAttention``: the latter if the sizes on its right have changed, but never with
    the last dimension, the features.

    Args:
        tag: the tag before.
        before: shape of the tensor before the view or reshape.
        shape: its shape after that.

    Returns:
        As ``find_batch_dim``.
    """
    stride = tag.sample_stride(before)
    inner = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]  # elements of one index
    places = [dim for dim in range(len(shape)) if inner[dim] == stride and shape[dim] == 1]
    if places:
        same = len(before) + tag.dim
        dim = same if same in places else places[0]
        return dim - len(shape), 1
    around = [
        dim for dim in range(len(shape))
        if inner[dim] <= stride <= inner[dim] * shape[dim] and stride % inner[dim] == 0
        and shape[dim] > 1
    ]  # fmt: skip
    if not around:
        return None
    left, right = around[0], around[-1]
    at = len(before) + tag.dim
    within = (tag.block_size,) if tag.block_size > 1 else ()
    is_flattened_left = before[at] > tag.block_size
    resized = shape[right:] != (*within, *before[at + 1 :])
    flattens_right = resized and right < len(shape) - 1 and not is_flattened_left
    dim = right if flattens_right else left
    return dim - len(shape), stride // inner[dim]
