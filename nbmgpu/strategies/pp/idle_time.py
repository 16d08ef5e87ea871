"""How long ranks of a pipeline wait for each other: the measured share, and its bubble.

The bubble is the share of the time for which ranks wait even if all stages take the same time:
(P - 1) / (M + P - 1) for P stages and M microbatches (GPipe, 1811.06965, section 2.3), and about
half of it where each rank has two stages (Narayanan et al. 2021, 2104.04473, section 2.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from nbmgpu.strategies.busy_time import BusyTimes

from .plan import SegmentPlan

LARGE = 0.15
"""Share of the time from which a bubble is worth advice."""

UNEQUAL = 0.25
"""Difference of the shares of two ranks from which their stages are unequal."""

IDLE = (
    "In forward and backward passes of the layers under pp, {shares}; in the rest they waited for "
    "each other. With stages of the same time, they would wait for {bubble:.0%}, the pipeline's "
    "bubble{formula}.{advice}"
)
FORMULA = ": (P - 1) / (M + P - 1), with P = {stages} stages and M = {parts} microbatches"

RANDOM = (
    "Layers with dropout or batch normalization have the numbers of one device on whole batches "
    "only; --microbatches 4 overlaps the stages, with other random numbers and statistics."
)
WHOLE = (
    "A layer needs whole batches, so stages cannot overlap; --strategy tp or fsdp may be faster."
)
BALANCE = "The stages take different times: --balance time gives each rank about the same."
LARGER = "Larger batches, in more microbatches, make it smaller."
MORE = "--microbatches {parts} makes it {bubble:.0%}."


class IdleTimes:
    """Measures how long this rank computes in passes of segments, and which plans they have."""

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        """Begin at zero.

        Args:
            group: the ranks of the pipeline.
            device: of this rank.
        """
        self._group = group
        self._device = device
        self._times = BusyTimes([device])
        self._plans: Counter[SegmentPlan] = Counter()

    @contextmanager
    def of_pass(self, plan: SegmentPlan) -> Iterator[None]:
        """Run the body, the forward or the backward pass of a segment, on all ranks."""
        start = self._times.mark(self._device)
        yield
        self._times.add_pass(self._device, start)
        self._plans[plan] += 1

    @contextmanager
    def of_stage(self) -> Iterator[None]:
        """Run the body, the computation of a stage on this rank."""
        start = self._times.mark(self._device)
        yield
        self._times.add_call(self._device, start)

    def describe(self, balanced: bool) -> str:
        """Return how long ranks waited, and what helps; empty if nothing has run; collective.

        Args:
            balanced: whether stages were balanced by time or by the user, or cannot be.
        """
        ranks = self._group.size()
        if not self._plans or ranks == 1:
            return ""
        shares = torch.zeros(ranks, device=self._device)
        shares[self._group.rank()] = sum(self._times.shares())
        dist.all_reduce(shares, group=self._group)
        busy: list[float] = shares.tolist()
        bubble = sum(plan.bubble(ranks) * count for plan, count in self._plans.items())
        bubble /= self._plans.total()
        return IDLE.format(
            shares=", ".join(
                f"rank {rank} computed {share:.0%}"
                for rank, share in zip(dist.get_process_group_ranks(self._group), busy, strict=True)
            )
            + " of the time",
            bubble=bubble,
            formula=self._formula(ranks),
            advice=_sentence(self._advice(busy, bubble, balanced)),
        )

    def _formula(self, ranks: int) -> str:
        """Return how the bubble is computed, if all passes have one stage on each rank."""
        sizes = {(len(plan.stages), plan.microbatches) for plan in self._plans}
        if len(sizes) > 1:
            return ""
        ((stages, parts),) = sizes
        return FORMULA.format(stages=stages, parts=parts) if stages == ranks else ""

    def _advice(self, busy: list[float], bubble: float, balanced: bool) -> str:
        """Return what makes ranks wait less; empty if nothing does."""
        modes = {call.info.mode for plan in self._plans for call in plan.calls}
        usual, _ = self._plans.most_common(1)[0]
        if usual.batch_size == 1:
            return LARGER
        if usual.microbatches == 1 and "whole" in modes:
            return WHOLE
        if usual.microbatches == 1 and "random" in modes:
            return RANDOM
        if max(busy) - min(busy) > UNEQUAL and not balanced:
            return BALANCE
        if bubble <= LARGE:
            return ""
        parts, ranks = min(2 * usual.microbatches, usual.batch_size), self._group.size()
        if parts <= usual.microbatches:
            return LARGER
        smaller = usual.bubble(ranks, parts)
        return MORE.format(parts=parts, bubble=smaller) if smaller < bubble - 0.01 else ""


def _sentence(text: str) -> str:
    return f" {text}" if text else ""
