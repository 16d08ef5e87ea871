"""Numbers that divide a sum in a loss: sizes of the share, counts of what is in it, or constants?

``sum / len(x)`` and ``sum / max(1, len(chosen))`` are means over what the rank has, ``sum / 4`` is
not, and in the autograd graph each is a number.  One that equals a size of the share on every rank
is taken for that; of others, one that is not the same on all ranks is a count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.reporting.recorder import Recorder
from nbmgpu.strategies import all_reduce

from .masked_sums import NEXT_TO_NOTHING

Meaning = Literal["size", "count", "constant"]

MOST = 16
"""Divisors of a loss on which ranks agree; of more, each rank sees for itself."""

ALWAYS, SELDOM, FIRST = 64, 17, 4
"""Losses about which ranks always talk, of how many later ones they do about one, and how many are
talked about in each pass over a loader: there may be other terms than in the last one."""


@dataclass(frozen=True)
class Divisor:
    """What divides a sum: the product of all ``number``, and the ``size`` of the share among them.

    ``node`` is the sum in the autograd graph; ``rows`` says that the size is that of rows which
    were chosen or joined, of which a share has as many as it happens to have.
    """

    number: float
    size: float | None
    node: Any
    rows: bool = False

    @property
    def alone(self) -> Meaning:
        """What a rank takes it for that asks nobody."""
        return "constant" if self.size is None else "size"


class Divisors:
    """What ranks have agreed on so far."""

    def __init__(self, recorder: Recorder, rank: int, world_size: int) -> None:
        """Have seen none; what is found out too late is told through ``recorder``."""
        self._recorder = recorder
        self._rank = rank
        self._world_size = world_size
        self._asked = 0
        self._known: dict[tuple[Any, ...], Meaning] = {}

    def look_again(self, at_new_model: bool = False) -> None:
        """Talk about the next losses; called by all ranks."""
        self._asked = 0 if at_new_model else min(self._asked, ALWAYS - FIRST)

    def agree(
        self, kinds: tuple[object, ...], found: Sequence[Divisor], counts: bool, even: bool
    ) -> list[Meaning]:
        """Tell what the divisors of a loss are; collective, also for a loss without any.

        Another rank may have some: of ``max(1, count)`` a number is left where the count is a
        tensor and less than one.

        Args:
            kinds: what the loss is known by again: the kinds of its nodes, and whose it is.
            found: the numbers that divide sums here.
            counts: whether tensors divide some.
            even: whether all ranks have as many samples; if so, they talk less often once they
                have talked enough.
        """
        keys = [(kinds, place) for place in range(len(found))]
        self._asked += 1
        if even and self._asked > ALWAYS and self._asked % SELDOM:
            for key, divisor in zip(keys, found, strict=True):
                self._known.setdefault(key, divisor.alone)
            return [self._known[key] for key in keys]
        meanings = self._compare(found[:MOST], counts)
        meanings += [divisor.alone for divisor in found[MOST:]]
        for place, key in enumerate(keys):
            before = self._known.get(key)
            if before == "count":  # which are the same on all ranks by chance
                meanings[place] = "count"
            elif before == "constant" and meanings[place] == "count":
                self._recorder.notice("late-count", notices.LATE_COUNT)
            self._known[key] = meanings[place]
        return meanings

    def _compare(self, found: Sequence[Divisor], counts: bool) -> list[Meaning]:
        # A row of flags, then two for each rank: its numbers, and which of them there are.
        told = torch.zeros(1 + 2 * self._world_size, MOST + 1, dtype=torch.float64)
        told[0, : len(found)] = torch.tensor([float(d.size is not None) for d in found])
        told[0, len(found) : MOST] = 1.0
        told[0, MOST] = float(counts)
        mine = 1 + 2 * self._rank
        told[mine, : len(found)] = torch.tensor([d.number for d in found], dtype=torch.float64)
        told[mine + 1, : len(found)] = 1.0
        all_reduce.all_reduce(told).wait()
        numbers, there = told[1::2], told[2::2] > 0
        meanings: list[Meaning] = []
        for place in range(len(found)):
            if told[0, place] == self._world_size:
                meanings.append("size")
                continue
            some = numbers[there[:, place], place].tolist()
            same = all(math.isclose(number, some[0], rel_tol=1e-6) for number in some)
            # Of max(1, count) the number is left where others divide by the count, a tensor.
            left = found[place].number in (1, NEXT_TO_NOTHING) and told[0, MOST] > 0
            meanings.append("constant" if same and not left else "count")
        return meanings
