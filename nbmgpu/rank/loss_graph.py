"""What has been found of a loss: the scalar part of its autograd graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Reduction = Literal["mean", "sum"]

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


def _no_multiple(count: Tensor, first: Tensor) -> Tensor:
    """Tell whether ``count`` is no multiple of ``first``, up to rounding; shape (), bool."""
    ratio = count / first
    return ~((ratio - ratio.round()).abs() <= 1e-5 * ratio.abs())
