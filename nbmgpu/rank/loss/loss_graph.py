"""What has been found of a loss: the scalar part of its autograd graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from .divisors import Divisor, Meaning
from .masked_sums import counted

Reduction = Literal["mean", "sum"]

Dims = tuple[int, tuple[int, ...]]
"""Of a reduction, how many dimensions there are, and which it is over."""


@dataclass
class LossGraph:
    """The scalar part of a loss's graph: everything between it and its reductions.

    What is read here is the structure of the graph, which is the same on all ranks, so
    that all of them weigh alike.  Only sizes are not: on these, ranks agree.

    Attributes:
        nodes: autograd's nodes, and how far each is from the loss.
        unread: a function that made the loss, and does not tell how it reduces; empty if none did.
        kinds: how it reduces over samples: ``mean``, ``sum``, ``counted``.
        reductions: how many reductions over samples there are.
        terms: these, each with the ``Path`` to it.
        averaged: how many of them are divided by the samples of the share besides, as losses of
            single samples are.
        taken: those over some dimensions that are taken for reductions over samples.
        not_taken: those of another kind that are not.
        bent: it is no linear function of its reductions (the root of a mean, a ratio of two
            sums), so that no weights make it exact.
        counts: the weights of means over a count of their own, each with the number of elements
            that the count would be if nothing were left out, or None.
        ignored: of means that are multiplied by the samples of the share: is something left out?
        by_rows: a mean is over other rows than the samples of the share.
        divided: a sum is divided by anything.
        divisors: the Python numbers that divide sums.
        sizes: for each of them that is no count, what it is as a size of the share, or None (see
            ``nbmgpu.rank.loss.size_inference``).
        by_tensor: a tensor divides a sum.
        by_older: one that is older than the batch does, and is taken for a count.
        by_multiple: a sum is divided by several times the samples of the share.
        mean_by_share: a mean is divided by the samples of the share.
        multiplied: whether one of the Python numbers that multiply a sum is 1 over the samples of
            the share; None without such numbers.
        ratios: the Python numbers that multiply a term of samples, and may be a whole number by
            the samples of the share, or the other way.
        penalised: there is a term of parameters alone.
        scaled: the Python numbers that divide or multiply such a term and are the samples of the
            share, or 1 over them.
    """

    nodes: dict[Any, int] = field(default_factory=dict)
    unread: str = ""
    kinds: set[str] = field(default_factory=set)
    reductions: int = 0
    terms: list[tuple[Any, Any]] = field(default_factory=list)
    averaged: int = 0
    taken: list[Dims] = field(default_factory=list)
    not_taken: list[Dims] = field(default_factory=list)
    bent: bool = False
    counts: list[tuple[Tensor, int | None]] = field(default_factory=list)
    ignored: list[Tensor] = field(default_factory=list)
    by_rows: bool = False
    divided: bool = False
    divisors: list[Divisor] = field(default_factory=list)
    sizes: list[float | None] = field(default_factory=list)
    by_tensor: bool = False
    by_older: bool = False
    by_multiple: bool = False
    mean_by_share: bool = False
    multiplied: bool | None = None
    ratios: set[float] = field(default_factory=set)
    penalised: bool = False
    scaled: set[float] = field(default_factory=set)

    @property
    def reduction(self) -> Reduction:
        """How shares combine: ``sum`` where nothing averages over samples."""
        return "sum" if self.kinds == {"sum"} else "mean"

    def adds_up_terms(self, even: bool) -> bool:
        """Tell whether terms are not averaged as losses of single samples are.

        ``even`` says that all ranks have as many samples.
        """
        averaged = self.averaged == self.reductions and (even or self.kinds == {"mean"})
        return self.reductions > 1 and not averaged

    def counts_others(self, samples: int) -> bool:
        """Tell whether a mean is over others than the share's ``samples``, beside one over these.

        Where shares differ, one of the two is weighed by the other's count.
        """
        counted = {n for _, n in self.counts if n is not None}
        return len(counted) > 1 and any(n % samples for n in counted)

    def rows_of_others(self, samples: int) -> tuple[int, ...]:
        """Return over how many rows means are that are not over the share's ``samples``.

        Only where there is another term, for which the weight might have to be another one.
        """
        over = [n for _, n in self.counts if n is not None]
        several = "mean" in self.kinds or len(set(over)) > 1
        return tuple(n for n in over if n % samples and several)

    def settle(self, meanings: Sequence[Meaning]) -> None:
        """Take the numbers that divide sums for what they are said to mean."""
        for divisor, meaning in zip(self.divisors, meanings, strict=True):
            if meaning == "constant":
                self.kinds.add("sum")
                self.sizes.append(None)
                continue
            self.kinds.add("counted")
            if meaning == "size" and divisor.size is not None:
                whole = None if divisor.rows else round(divisor.size)
                self.counts.append((torch.as_tensor(divisor.size), whole))
                self.sizes.append(divisor.size)
            else:
                number = torch.tensor(divisor.number, dtype=torch.float64)
                self.counts.append((counted(number, divisor.node), None))

    def doubt(self) -> bool | Tensor:
        """Tell whether the terms of the loss would need different weights.

        A tensor (bool, shape ()) when the answer depends on values on a device.
        """
        if self.bent:
            return True
        if self.ignored:
            return torch.stack(self.ignored).any()
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
