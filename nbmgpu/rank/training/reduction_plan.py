"""Plans how the gradients and losses of all ranks are reduced after a backward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.rank.loss.divisors import Divisor, Meaning
from nbmgpu.rank.loss.loss_weights import all_reduce_losses
from nbmgpu.rank.reporting import notices
from nbmgpu.strategies.base import Backward
from nbmgpu.strategies.scalars import as_scalar

from .loss_reader import LossReader

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.rank.loss.diagnostics import LossDiagnostics
    from nbmgpu.rank.loss.loss_graph import LossGraph
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.reporting.recorder import Recorder

    from .gradient_accumulation import GradientAccumulation


class ReductionPlanner:
    """Plans the reduction of a backward pass from how its losses reduce over samples."""

    def __init__(
        self,
        rank_info: RankInfo,
        progress: TrainingProgress,
        accumulation: GradientAccumulation,
        reader: LossReader,
        diagnostics: LossDiagnostics,
        recorder: Recorder,
    ) -> None:
        """Plan for the current batch of ``progress``."""
        self._rank_info = rank_info
        self._progress = progress
        self._accumulation = accumulation
        self._reader = reader
        self._diagnostics = diagnostics
        self._recorder = recorder

    def plan(self, graph: LossGraph, scalars: list[Tensor]) -> Backward:
        """Return how gradients and ``scalars`` are reduced, for the loss of ``graph``.

        Args:
            graph: of the loss.
            scalars: losses that get the value of the global batch, the root first.
        """
        shard, even = self._progress.shard, 1.0 / self._rank_info.dp_size
        totals = self._which_add_up(graph, scalars)
        if shard is None:
            return Backward(even, normalized=True, scalars=scalars, summed=totals)
        counts = as_scalar(graph.counts[0][0]) / shard.global_samples if graph.counts else None
        averages_sums = self._rank_info.batch == "per-rank" or self._accumulation.on
        if graph.reduction == "sum" and averages_sums:
            self._recorder.notice("summed-loss", notices.SUMMED_LOSS)
        if not shard.is_partial:  # one rank has the whole batch, or every rank has
            use_counts = self._accumulation.on and not shard.is_padding
            weight = counts if use_counts and counts is not None else shard.weight
            return Backward(weight, normalized=False, scalars=scalars, summed=totals)
        self._diagnostics.check(graph)
        if graph.has_penalty and self._reader.adds_up(graph):
            self._recorder.notice("summed-penalty", notices.SUMMED_PENALTY)
        if graph.reduction == "sum":
            is_padding = shard.is_padding and not any(totals)
            return Backward(
                0.0 if is_padding else even, normalized=True, scalars=scalars, summed=totals
            )
        # Never assumed to be normalized: what a rank reads of its loss must not decide whether it
        # takes part in a collective.
        weight = shard.weight if counts is None or shard.is_padding else counts
        return Backward(weight, normalized=False, scalars=scalars, summed=totals)

    def loss_factor(self, graph: LossGraph) -> float:
        """Return the factor of a loss by which the average over ranks becomes that of one device.

        A summed loss is multiplied by the number of ranks; 0 for an empty shard.
        """
        if not self._reader.adds_up(graph):
            return 1.0
        shard = self._progress.shard
        return 0.0 if shard is not None and shard.is_padding else float(self._rank_info.dp_size)

    def weigh_loss(
        self, plan: Backward, like: Tensor, factor: float, is_sum: bool
    ) -> tuple[Any, Backward]:
        """Weight the loss before its pass, so that the plain average over ranks is the gradient.

        Args:
            plan: how the ranks' losses are reduced.
            like: a tensor on the loss's device.
            factor: of ``loss_factor``.
            is_sum: whether the loss is a sum, so that a group of batches averages their sums.

        Returns:
            The factor for the gradient that starts the pass, and the plan for after it.
        """
        dp_size, shard = self._rank_info.dp_size, self._progress.shard
        total = all_reduce_losses(plan, like, self._rank_info.dp_group)
        scale: Any = factor
        if factor == 1.0 and isinstance(total, torch.Tensor):
            scale = torch.where(total != 0, plan.weight * dp_size / total, 0.0)
        elif factor == 1.0:
            scale = plan.weight * dp_size / total if total else 0.0
        samples = 1.0 if is_sum or shard is None else float(shard.global_samples)
        group = self._accumulation.weigh(total * samples, samples)
        is_last = self._accumulation.is_step_due
        return scale * group, Backward(1.0 / dp_size, normalized=True, is_last=is_last)

    def _which_add_up(self, graph: LossGraph, scalars: list[Tensor]) -> list[bool]:
        """Return for each of ``scalars``, the root first, whether the ranks' values add up.

        Parts may reduce in other ways than the root does, such as the sum in
        ``loss_sum / len(x)``.  The ranks have agreed with the root on which numbers are sizes.
        """
        root, count = self._reader.adds_up(graph), len(scalars)
        alike = (
            not graph.divisions.exist
            and (root or "sum" not in graph.kinds)
            and not graph.has_penalty
        )
        if alike or count < 2 or not self._reader.has_part:
            return [root] * count
        sizes = any(size is not None for size in graph.divisions.sizes)
        counts = len(graph.divisions.sizes) < len(graph.divisions.numbers)

        def agreed(kinds: tuple[str, ...], divisors: list[Divisor], counted: bool) -> list[Meaning]:
            other: Meaning = "count" if counts else "constant"
            return ["size" if d.shard_size is not None and sizes else other for d in divisors]

        parts = (self._reader.read(part, agreed) for part in scalars[1:])
        return [root, *(self._reader.adds_up(part) for part in parts)]
