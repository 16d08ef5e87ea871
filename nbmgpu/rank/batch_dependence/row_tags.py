"""What is known of a tensor: which samples of the batch its parts belong to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rows:
    """A tensor with a dimension of samples.

    ``dim`` is that dimension, counted from the right: -1 is the last.  It may be flattened
    with others, and then ``inner`` elements along it belong to one sample before the next
    one's come, as in (samples * tokens, features).  ``rows`` are the samples in their order,
    ``seen`` all samples that it has been chosen from, each by itself.
    """

    dim: int
    inner: int
    rows: tuple[int, ...]
    seen: frozenset[int]

    def across(self, shape: Shape) -> int:
        """Return how many elements of a tensor of ``shape`` lie between two samples."""
        return self.inner * math.prod(shape[len(shape) + self.dim + 1 :])

    @property
    def chosen(self) -> bool:
        """Whether these are some of the samples, each chosen by itself."""
        return len(self.rows) < len(self.seen)

    @property
    def plain(self) -> bool:
        """Whether each place along the dimension is one sample's (but perhaps repeated)."""
        return self.inner == 1


@dataclass(frozen=True)
class One:
    """A tensor that is one sample's alone."""

    row: int

    @property
    def seen(self) -> frozenset[int]:
        """The sample, as a set."""
        return frozenset((self.row,))


@dataclass(frozen=True)
class Total:
    """A sum, or an average, of what each of the samples ``seen`` gives by itself.

    ``chosen`` tells that it is an average over those of them that were chosen, ``beside`` that
    something trained has been added that is of none of them, ``apart`` that it is a sum of totals
    of different samples.
    """

    seen: frozenset[int]
    chosen: bool = False
    beside: bool = False
    apart: bool = False


@dataclass(frozen=True)
class Coupled:
    """A tensor whose elements depend on several samples at once, first by ``operation``.

    ``line`` is the line of the cell that asked for it, 0 when unknown.
    """

    operation: str
    line: int = 0

    seen: frozenset[int] = frozenset()


Tag = Rows | One | Total | Coupled

K = TypeVar("K", bound=Tag)


def placed(across: int, samples: int, shape: Shape) -> tuple[int, int] | None:
    """Return ``dim`` and ``inner`` of a tensor of ``shape`` whose elements keep their order.

    Args:
        across: elements between two samples.
        samples: how many samples there are.
        shape: of the tensor, after a view or a reshape.

    Returns:
        None where the samples do not lie along one dimension.
    """
    behind = 1
    for dim in range(-1, -len(shape) - 1, -1):
        size = shape[dim]
        fits = across % behind == 0 and across * samples <= behind * size
        if behind <= across and fits and size > 1:
            return dim, across // behind
        behind *= size
    return None
