"""Begins and ends the steps and passes of loaders that a cell trains on."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from nbmgpu.rank.reporting import notices

from .batch_tensors import weak_tensors
from .last_batch import LastBatch, LastBatches
from .loader_events import LoaderEvent

if TYPE_CHECKING:
    from nbmgpu.rank.loss.loss_state import LossState
    from nbmgpu.rank.metrics.throughput import Throughput
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.reporting.recorder import Recorder
    from nbmgpu.rank.training.gradient_accumulation import GradientAccumulation

    from .batch_shard import BatchShard, EnclosingPass
    from .loader_events import LoaderEventDispatcher

T = TypeVar("T")


class LoaderSteps:
    """Begins the step of a batch when the batch is used, which may be after it was loaded.

    Attributes:
        last_batches: the last one that each loader has loaded.
    """

    def __init__(
        self,
        progress: TrainingProgress,
        accumulation: GradientAccumulation,
        losses: LossState,
        throughput: Throughput,
        recorder: Recorder,
        events: LoaderEventDispatcher,
        last_batches: LastBatches,
    ) -> None:
        """Update ``progress`` and ``accumulation`` as batches are used."""
        self.progress = progress
        self.accumulation = accumulation
        self.losses = losses
        self.throughput = throughput
        self.recorder = recorder
        self.events = events
        self.last_batches = last_batches

    def with_last(self, batches: Iterable[T]) -> Iterator[tuple[T, bool]]:
        """Yield each batch, and whether it is the last one, as far as accumulation needs it."""
        return self.accumulation.with_last(batches)

    def queue_batch(
        self,
        loader: object,
        batch: Any,
        shard: BatchShard,
        last: bool,
        tokens: int = 0,
        **progress: int,
    ) -> None:
        """Begin the step of ``batch`` when it is used.

        Args:
            loader: the loader or iterator that yields the batch.
            batch: the rank's shard of it, collated.
            shard: number of samples in the shard and in the global batch.
            last: whether the pass ends with it.
            tokens: number of tokens in the shard.
            progress: fields of the loader's progress bar; no bar without any.
        """
        self.last_batches.add(loader, LastBatch(batch, shard))
        begin = functools.partial(self._begin_batch, loader, shard, last, tokens, progress)
        self.events.dispatch(LoaderEvent(begin, True, loader, weak_tensors(batch), shard, last))

    def _begin_batch(
        self, loader: object, shard: BatchShard, last: bool, tokens: int, progress: dict[str, int]
    ) -> None:
        if tokens and not shard.is_padding:
            self.throughput.add_tokens(tokens * shard.global_samples / shard.samples)
        if self.progress.follows_unused_batch_of_other_loader(shard, loader):
            self.recorder.notice("two-loaders", notices.TWO_LOADERS)
        self.accumulation.begin_batch(last)
        self.losses.reduced.clear()
        self.progress.begin_batch(shard, loader)
        self.throughput.add_samples(shard.global_samples, self.progress.step)
        if progress:
            self.recorder.progress(
                "loader",
                label="epoch",
                samples=self.throughput.total,
                train_step=self.progress.step,
                **progress,
            )

    def queue_end(
        self, loader: object, enclosing: EnclosingPass, backwards_before: int | None = None
    ) -> None:
        """End a pass over ``loader`` after its batches have been used.

        Args:
            loader: the loader or iterator that yielded the batches.
            enclosing: the result of ``TrainingProgress.begin_pass``.
            backwards_before: backward passes before the first batch; None without a batch.
        """
        end = functools.partial(self._end_pass, loader, enclosing, backwards_before)
        self.events.dispatch(LoaderEvent(end, begins_step=False, source=loader))

    def _end_pass(
        self, loader: object, enclosing: EnclosingPass, backwards_before: int | None
    ) -> None:
        self.accumulation.is_last_batch = False
        self.progress.end_pass(loader, enclosing)
        self.progress.note_untrained_pass(backwards_before)
