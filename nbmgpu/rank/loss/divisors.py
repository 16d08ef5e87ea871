"""Numbers that divide or multiply in a loss: sizes of the shard, counts of its contents, constants.

``sum / len(x)`` and ``sum / max(1, len(chosen))`` are means over the rank's samples, ``sum / 4`` is
not.  In the autograd graph, each divisor is a plain number.  A number that equals a size of the
shard on every rank is classified as a size.  Any other number that differs between ranks is a
count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.reporting.recorder import Recorder
from nbmgpu.strategies import collectives

from .masked_sums import NEGLIGIBLE

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Meaning = Literal["size", "count", "constant"]

NOT_COMPARED = 0.0
"""The value of a number of which ranks only compare whether it equals a size."""

MAX_COMPARED = 16
"""Divisors of a loss that are compared between ranks; the others are classified locally."""

ALWAYS, INTERVAL, PER_PASS = 64, 17, 4
"""The first ``ALWAYS`` losses are compared, then one in ``INTERVAL``, and the first ``PER_PASS`` of
each pass over a loader, which may have other terms than the pass before."""


@dataclass(frozen=True)
class Divisor:
    """The divisor of a sum in a loss.

    Attributes:
        value: the product of all numbers that divide the sum.
        shard_size: the one of them that equals a size of the shard, or None.
        node: the sum in the autograd graph.
        has_variable_rows: whether the size counts rows that were selected or concatenated, so that
            their number varies between shards.
    """

    value: float
    shard_size: float | None
    node: Any
    has_variable_rows: bool = False

    @property
    def local_meaning(self) -> Meaning:
        """The meaning as far as this rank can see, without communication."""
        return "constant" if self.shard_size is None else "size"


@dataclass(frozen=True)
class ScaledMean:
    """A mean in a loss that Python numbers multiply: ``mse_loss(out, y) * len(x)`` is a sum.

    Attributes:
        node: the mean in the autograd graph.
        divisors: what divides it, without counts over the global batch.
        is_ratio: whether a tensor is among what divides it, such counts included.
        equals_size: whether one of the numbers equals the samples of the shard, and may be meant.
    """

    node: Any
    divisors: Sequence[Any]
    is_ratio: bool
    equals_size: bool

    @property
    def factor(self) -> Divisor:
        """The number as one on whose meaning ranks agree: a size on all of them, or on none."""
        return Divisor(NOT_COMPARED, 1.0 if self.equals_size else None, self.node)


class DivisorComparison:
    """Compares divisors between ranks and caches the results."""

    def __init__(
        self,
        recorder: Recorder,
        dp_rank: int,
        dp_size: int,
        dp_group: ProcessGroup | None = None,
    ) -> None:
        """Create an empty cache.

        Args:
            recorder: receives notices about late findings.
            dp_rank, dp_size: index of this rank and number of ranks along ``dp``.
            dp_group: the ranks along ``dp``; None for all.
        """
        self._recorder = recorder
        self._dp_rank = dp_rank
        self._dp_size = dp_size
        self._dp_group = dp_group
        self._num_losses = 0
        self._known: dict[tuple[Any, ...], Meaning] = {}

    def restart(self, new_model: bool = False) -> None:
        """Compare the next losses again; all ranks must call this."""
        self._num_losses = 0 if new_model else min(self._num_losses, ALWAYS - PER_PASS)

    def agree(
        self, signature: tuple[object, ...], found: Sequence[Divisor], by_tensor: bool, even: bool
    ) -> list[Meaning]:
        """Return the meaning of each divisor of a loss.

        Collective, also for a loss without divisors: another rank may have some.  Of
        ``max(1, count)``, a plain number is left only where the tensor ``count`` is less than one.

        Args:
            signature: identifies the loss across steps: its operations and its position in a step.
            found: the numbers that divide sums on this rank.
            by_tensor: whether tensors divide some sums.
            even: whether all ranks have the same number of samples; if so, they communicate less
                often after the first losses.
        """
        keys = [(signature, index) for index in range(len(found))]
        self._num_losses += 1
        if even and self._num_losses > ALWAYS and self._num_losses % INTERVAL:
            for key, divisor in zip(keys, found, strict=True):
                self._known.setdefault(key, divisor.local_meaning)
            return [self._known[key] for key in keys]
        meanings = self._compare(found[:MAX_COMPARED], by_tensor)
        meanings += [divisor.local_meaning for divisor in found[MAX_COMPARED:]]
        for index, key in enumerate(keys):
            before = self._known.get(key)
            if before == "count":  # the counts are equal on all ranks by chance
                meanings[index] = "count"
            elif before == "constant" and meanings[index] == "count":
                self._recorder.notice("late-divisor", notices.LATE_DIVISOR)
            self._known[key] = meanings[index]
        return meanings

    def _compare(self, found: Sequence[Divisor], by_tensor: bool) -> list[Meaning]:
        # Row 0: flags.  Then two rows per rank: its values, and 1 where there is a value.
        table = torch.zeros(1 + 2 * self._dp_size, MAX_COMPARED + 1, dtype=torch.float64)
        table[0, : len(found)] = torch.tensor([float(d.shard_size is not None) for d in found])
        table[0, len(found) : MAX_COMPARED] = 1.0
        table[0, MAX_COMPARED] = float(by_tensor)
        own_row = 1 + 2 * self._dp_rank
        table[own_row, : len(found)] = torch.tensor([d.value for d in found], dtype=torch.float64)
        table[own_row + 1, : len(found)] = 1.0
        collectives.all_reduce(table, self._dp_group).wait()
        values, present = table[1::2], table[2::2] > 0
        meanings: list[Meaning] = []
        for index in range(len(found)):
            if table[0, index] == self._dp_size:
                meanings.append("size")
                continue
            of_ranks = values[present[:, index], index].tolist()
            same = all(math.isclose(value, of_ranks[0], rel_tol=1e-6) for value in of_ranks)
            # max(1, count) leaves this number where other ranks divide by the tensor ``count``.
            fallback = found[index].value in (1, NEGLIGIBLE) and table[0, MAX_COMPARED] > 0
            meanings.append("constant" if same and not fallback else "count")
        return meanings
