"""One training loop of transformers' Trainer: the batches of a step, their targets and losses.

A Trainer fetches all batches of an accumulated step at once, and divides their losses by the
number of targets in all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from nbmgpu.patches import PatchStack
from nbmgpu.rank.data.loader_events import EventQueue
from nbmgpu.rank.store.broadcast import sum_over_ranks

if TYPE_CHECKING:
    from nbmgpu.rank.data.batch_shard import BatchShard
    from nbmgpu.rank.data.loader_events import LoaderEventDispatcher
    from nbmgpu.rank.data.loader_patch import LoaderPatch
    from nbmgpu.rank.loss.loss_state import LossState
    from nbmgpu.rank.progress import TrainingProgress
    from nbmgpu.rank.rank_info import RankInfo
    from nbmgpu.rank.reporting.recorder import Recorder

TRAINER = "transformers.trainer.Trainer"


class TrainingLoop:
    """One training loop of a Trainer.

    Attributes:
        trainer: the Trainer.
        queue: events of the batches that were fetched for the current step.
        loss: sum of the losses of the current step so far.
        remaining: number of batches of the current step that are not trained on yet.
    """

    def __init__(
        self,
        rank_info: RankInfo,
        progress: TrainingProgress,
        losses: LossState,
        loaders: LoaderPatch,
        events: LoaderEventDispatcher,
        recorder: Recorder,
        trainer: Any,
    ) -> None:
        """Prepare to follow ``trainer``.

        Args:
            rank_info: position of the rank.
            progress: current shard and step.
            losses: losses of the current step.
            loaders: shards the Trainer's loader.
            events: begins the steps of batches.
            recorder: takes the losses.
            trainer: the Trainer.
        """
        self.trainer = trainer
        self.queue = EventQueue()
        self.loss: Any = 0.0
        self.remaining = 0
        self._rank_info = rank_info
        self._progress = progress
        self._losses = losses
        self._loaders = loaders
        self._events = events
        self._recorder = recorder

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Wrap methods of this instance, which covers those that a subclass overrides."""
        trainer, patches = self.trainer, PatchStack()
        wrappers: dict[str, Callable[[Any], Any]] = {
            "get_train_dataloader": self._wrap_loader,
            "get_batch_samples": self._wrap_fetch,
            "training_step": self._wrap_step,
            "floating_point_ops": self._wrap_flops,
        }
        batch_size = trainer._train_batch_size
        gpus = getattr(trainer.args, "_n_gpu", 1)
        if gpus > 1 and trainer.args.n_gpu == 1:
            trainer._train_batch_size = max(1, batch_size // gpus)
        for name, make in wrappers.items():
            patches.wrap(f"{TRAINER}.{name}", make, trainer)
        self._losses.are_recorded = False
        try:
            yield
        finally:
            self._losses.are_recorded = True
            patches.remove()
            trainer._train_batch_size = batch_size
            self._events.finish(self.queue)
            self._losses.global_counts.clear()

    def _wrap_loader(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Mark the loader as sharded: a Trainer asks for its length before it iterates."""

        def get_train_dataloader() -> Any:
            loader = original()
            if self._rank_info.shards_data:
                inner = getattr(loader, "base_dataloader", loader)
                self._loaders.expect_sharded(inner)
            return loader

        return get_train_dataloader

    def _wrap_fetch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Queue the batches of a step, which begin one after the other, and count their targets."""

        def get_batch_samples(*args: Any, **kwargs: Any) -> Any:
            self._events.finish(self.queue)
            # A Trainer calls it after it has the batch; the loader checks it before.
            self.trainer.model.train()
            with self._events.collect(self.queue):
                batches, count = original(*args, **kwargs)
            shards = [event.shard for event in self.queue if event.shard is not None]
            if count is not None and self._rank_info.shards_data and shards:
                count = self._count(batches, shards, count)
                self._losses.global_counts[:] = [count]
            self.remaining = len(batches)
            return StepBatches(batches, self._events, self.queue), count

        return get_batch_samples

    def _count(self, batches: list[Any], shards: list[BatchShard], local: Any) -> Any:
        """Return the number of targets that one device would count in the batches of a step.

        The losses of all ranks, divided by it, add up to that of one device.
        """
        one = functools.partial(self.trainer._get_num_items_in_batch, device=torch.device("cpu"))
        counts = [
            0.0 if s.is_padding else float(one([b])) for b, s in zip(batches, shards, strict=True)
        ]
        weights = [shard.weight for shard in shards]
        sums = sum_over_ranks([*counts, *weights], self._rank_info.dp_group)
        pairs = zip(sums[: len(counts)], sums[len(counts) :], strict=True)
        total = sum(count / weight for count, weight in pairs)
        return local.new_tensor(total) if torch.is_tensor(local) else round(total)

    def _wrap_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Record the loss of each optimizer step, as the Trainer logs it with logging_steps=1."""

        def training_step(*args: Any, **kwargs: Any) -> Any:
            self._progress.step = self.trainer.state.global_step + 1
            loss = original(*args, **kwargs)
            self.loss, self.remaining = self.loss + loss, self.remaining - 1
            if self.remaining <= 0:
                self._recorder.metric("loss", self._progress.step, self.loss)
                self.loss = 0.0
            return loss

        return training_step

    def _wrap_flops(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Skip the operations of a padding batch, and count once what all ranks compute."""

        def floating_point_ops(inputs: Any) -> Any:
            rank_info, shard = self._rank_info, self._progress.shard
            if shard is None:
                return original(inputs) / (rank_info.dp_size if rank_info.shards_data else 1)
            return 0 if shard.is_padding else original(inputs)

        return floating_point_ops


class StepBatches(list[Any]):
    """The batches of a step: a batch's step begins when it is yielded."""

    def __init__(
        self, batches: list[Any], events: LoaderEventDispatcher, queue: EventQueue
    ) -> None:
        """Hold ``batches``, whose steps are queued in ``queue``."""
        super().__init__(batches)
        self._events, self._queue = events, queue

    def __iter__(self) -> Iterator[Any]:
        """Begin each batch's step and yield it; end the pass after the last batch."""
        for batch in super().__iter__():
            self._events.dispatch_next_batch(self._queue)
            yield batch
        if not any(event.begins_step for event in self._queue):
            self._events.finish(self._queue)
