"""Patches of Lightning's logging: values are reduced over ranks, and shown as curves.

A training step sees the rank's shard of the batch, so the values that it logs are the rank's.
They are collected as they are logged, and reduced together when the step has returned: means
are weighted by their samples; a summed loss, or ``reduce_fx="sum"``, adds up; and so do batch
sizes, so that the mean over an epoch is weighted as on one device.

Ranks first compare *which* values they have logged: a value that only some ranks have logged
stays the rank's own, and is reported.
"""

from __future__ import annotations

import functools
import operator
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.errors import StrategyError, format_message
from nbmgpu.rank.data.batch_shard import BatchShard
from nbmgpu.rank.frameworks.logged_reduction import (
    Reduction,
    gather_numbers,
    is_same_number,
    read_reduction,
    reduce_over_ranks,
    requested_reduction,
)
from nbmgpu.rank.loss.graph_reader import AgreeOnDivisors, local_meanings
from nbmgpu.rank.reporting import notices

from .library import LightningLibrary

if TYPE_CHECKING:
    from torch import Tensor

    from nbmgpu.rank.loss.loss_analysis import LossAnalysis
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.reporting.recorder import Recorder

Function = Callable[..., Any]

STATE = ("value", "cumulated_batch_size", "_forward_cache", "_computed")
"""Attributes of Lightning's record of a logged value that an update changes."""

_SKIPPED = format_message(
    "training_step returned None on some ranks and a loss on others, each for its shard of the "
    "batch",
    "All ranks must skip a batch, or none",
    "return 0.0 * loss instead of None",
)


@dataclass
class Logged:
    """A value that a training step has logged, and Lightning's record before that."""

    metric: Any
    value: Tensor
    batch_size: int
    reduction: Reduction
    before: dict[str, Any]


class LoggedValues:
    """Reduces the values that one copy of Lightning logs."""

    def __init__(
        self,
        rank_info: RankInfo,
        progress: TrainingProgress,
        losses: LossAnalysis,
        recorder: Recorder,
        device: str,
        library: LightningLibrary,
    ) -> None:
        """Patch ``library``; ranks exchange values on ``device``."""
        self.rank_info = rank_info
        self.progress = progress
        self.losses = losses
        self.recorder = recorder
        self.device = device
        self.library = library
        self.stepping = False
        self.logged: list[Logged] = []
        self.reduction = Reduction()

    def install(self) -> None:
        """Install the patches, for the rest of this process."""
        wrap = self.library.wrap
        automatic, manual = "loops.optimization.automatic", "loops.optimization.manual"
        wrap(f"{automatic}._AutomaticOptimization._training_step", self._step)
        wrap(f"{manual}._ManualOptimization.run", self._step)
        wrap(f"{automatic}.ClosureResult.from_training_step_output", self._automatic_end)
        wrap(f"{manual}.ManualResult.from_training_step_output", self._manual_end)
        wrap("core.module.LightningModule.log", self._log)
        connector = "trainer.connectors.logger_connector"
        wrap(f"{connector}.result._ResultMetric.forward", self._forward)
        logger = f"{connector}.logger_connector._LoggerConnector"
        wrap(f"{logger}.on_batch_end", self._recording_steps)
        wrap(f"{logger}.update_train_epoch_metrics", self._recording_epochs)
        wrap(f"{logger}.log_eval_end_metrics", self._recording_evaluations)

    @property
    def shard(self) -> BatchShard | None:
        """The rank's shard of the batch of the current step; None where data is not split."""
        return self.progress.shard if self.rank_info.shards_data else None

    def _step(self, original: Function) -> Function:
        def step(loop: Any, *args: Any, **kwargs: Any) -> Any:
            self.stepping = True
            self.losses.state.returned = {}
            self.logged.clear()
            try:
                return original(loop, *args, **kwargs)
            finally:
                self.stepping = False

        return step

    def _log(self, original: Function) -> Any:
        def log(module: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            # Lightning detaches the value; its graph shows how it averages samples.
            if self.stepping and self.shard is not None and isinstance(value, torch.Tensor):
                settled = self.losses.state.is_reduced(value)
                # A loss after backward() is global already.
                self.reduction = Reduction() if settled else self._read(value, self.shard)
            try:
                original(module, name, value, *args, **kwargs)
            finally:
                self.reduction = Reduction()

        return log

    def _forward(self, original: Function) -> Any:
        def forward(metric: Any, value: Any, batch_size: int) -> None:
            shard = self.shard
            if shard is not None and metric.is_tensor:
                if self.stepping:
                    before = {k: v for k, v in vars(metric).items() if k in STATE}
                    reduction = requested_reduction(metric.meta, self.reduction)
                    self.logged.append(
                        Logged(metric, value.detach().clone(), batch_size, reduction, before)
                    )
                elif batch_size == shard.samples:  # a hook of the training loop
                    batch_size = shard.global_samples
            original(metric, value, batch_size)

        self.update = original
        return forward

    def _automatic_end(self, original: Any) -> Any:
        def end(cls: Any, output: Any, normalize: int = 1) -> Any:
            result = original.__func__(cls, output, normalize)
            losses = output if isinstance(output, dict) else {"loss": output}
            self.losses.state.returned = {
                name: value
                for name, value in losses.items()
                if isinstance(value, torch.Tensor) and value.dim() == 0 and value.requires_grad
            }
            self.stepping = False
            if self.shard is not None:
                value = self._make_global(losses.get("loss"), skips=output is None)
                if value is not None:
                    result.loss = (value / normalize).to(result.loss.dtype)
            return result

        return classmethod(end)

    def _manual_end(self, original: Any) -> Any:
        def end(cls: Any, output: Any) -> Any:
            self.stepping = False
            if self.shard is not None:
                self._make_global(None)
            return original.__func__(cls, output)

        return classmethod(end)

    def _make_global(self, loss: Tensor | None, skips: bool = False) -> Tensor | None:
        """Replace logged values by those over the global batch; collective.

        Returns:
            The global value of ``loss``, float64 of shape ().

        Raises:
            StrategyError: some ranks skip the batch, and others do not.
        """
        shard, logged = self.shard, list(self.logged)
        assert shard is not None
        self.logged.clear()
        names = "\n".join(f"{entry.metric.meta.fx}.{entry.metric.meta.name}" for entry in logged)
        same = sum(
            is_same_number(entry.value, loss) << index for index, entry in enumerate(logged[:60])
        )
        ranks = gather_numbers([skips, zlib.crc32(names.encode()), same])
        if len({skipped for skipped, _, _ in ranks}) > 1:
            raise StrategyError(_SKIPPED)
        if len({logs for _, logs, _ in ranks}) > 1:
            self.recorder.notice("logged-on-some-ranks", notices.LOGGED_ON_SOME_RANKS)
            logged = []
        same = functools.reduce(operator.and_, (mask for _, _, mask in ranks))
        entries = [(entry.value, entry.batch_size, entry.reduction) for entry in logged]
        if loss is not None:
            reduction = self._read(loss, shard, self.losses.divisors.agree)
            for index, (value, size, _) in enumerate(entries):
                if same >> index & 1:  # the loss as a number, or detached
                    entries[index] = (
                        value,
                        size,
                        requested_reduction(logged[index].metric.meta, reduction),
                    )
            entries.append((loss.detach(), shard.samples, reduction))
        if not entries:
            return None
        values, sizes = reduce_over_ranks(entries, shard, self.device, self.rank_info.dp_group)
        for entry in reversed(logged):
            vars(entry.metric).update(entry.before)
        for entry, value, total in zip(logged, values, sizes, strict=False):
            like = (
                entry.value.double() if entry.value.dtype == torch.float64 else entry.value.float()
            )
            self.update(entry.metric, value.to(like), total.to(like.device))
        return values[-1] if loss is not None else None

    def _read(
        self, value: Tensor, shard: BatchShard, agree: AgreeOnDivisors = local_meanings
    ) -> Reduction:
        # The operations below are not the step's.
        with self.losses.batch_dependence.paused():
            return read_reduction(value, shard, agree)

    def _recording_steps(self, original: Function) -> Any:
        def end(connector: Any) -> None:
            original(connector)
            if connector.trainer.training:
                self._record(connector.metrics["log"])

        return end

    def _recording_epochs(self, original: Function) -> Any:
        def update(connector: Any) -> None:
            self._record(connector.metrics["log"])
            original(connector)

        return update

    def _recording_evaluations(self, original: Function) -> Any:
        def log(connector: Any, metrics: Any) -> None:
            if not connector.trainer.sanity_checking:
                self._record(metrics)
            original(connector, metrics)

        return log

    def _record(self, metrics: dict[str, Any]) -> None:
        """Record logged values as curves; they are the same on all ranks."""
        if "loss" in metrics:
            self.losses.state.are_recorded = False  # the user logs a curve of that name
        if self.rank_info.rank == 0:
            for name, value in metrics.items():
                if not isinstance(value, torch.Tensor) or value.numel() == 1:
                    self.recorder.metric(name, self.progress.step, value)
