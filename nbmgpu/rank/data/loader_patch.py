"""Patches ``DataLoader``: loaders that a training loop of the cell reads are sharded among ranks.

All other loaders yield whole batches on every rank, so results computed from them equal those of
one device.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, MutableMapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.rng.generators import sampler_generator_ids
from nbmgpu.rank.source_analysis import batch_size_use
from nbmgpu.rank.source_analysis.loader_loops import is_cycled, zips_loaders
from nbmgpu.rank.source_analysis.training_loops import loop_trains
from nbmgpu.rank.training.optimizer_registry import training

from .batch_sampling import draw_each
from .batch_shard import BatchShard
from .batch_split import batch_sizes, count_rows
from .shard_reader import ShardLoader
from .sharded_loader import ShardedLoader

if TYPE_CHECKING:
    from nbmgpu.rank.training.step_limit import StepLimit

    from .loader_context import LoaderContext


Follow = Callable[[Callable[[], Iterator[Any]], FrameType], Iterator[Any]]
"""Takes what begins a pass over a loader, and the frame that asks for it."""


class LoaderPatch:
    """Replaces ``DataLoader.__iter__`` and ``DataLoader.__len__`` in a rank.

    Attributes:
        original_len: ``DataLoader.__len__`` without the patch.
        follow: begins a pass over a loader, and follows it.
        was_sharded: whether each loader was sharded when it was last iterated.
        sharded_loaders: the sharded view of each loader.
    """

    def __init__(self, context: LoaderContext, limit: StepLimit) -> None:
        """Prepare the patch; ``limit`` may end loops."""
        self.context = context
        self.limit = limit
        self.original_len = DataLoader.__len__
        self.follow: Follow | None = None
        self.was_sharded: MutableMapping[Any, bool] = weakref.WeakKeyDictionary()
        self.sharded_loaders: MutableMapping[Any, ShardedLoader] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Install the patch for the rest of this process."""
        patch = self

        @functools.wraps(DataLoader.__iter__)
        def patched_iter(loader: DataLoader[Any]) -> Iterator[Any]:
            if isinstance(loader, ShardLoader):
                return patch.context.original_iter(loader)
            frame, follow = sys._getframe(1), patch.follow
            if follow is None:
                batches = patch.iterate(loader, frame)
            else:
                batches = follow(lambda: patch.iterate(loader, frame), frame)
            if not patch.limit.on:
                return batches
            return patch.limit.end_after_last(batches, patch.context.trained.is_training)

        @functools.wraps(DataLoader.__len__)
        def patched_len(loader: DataLoader[Any]) -> int:
            length, info = patch.original_len(loader), patch.context.rank_info
            per_rank = info.batch == "per-rank" and not isinstance(loader, ShardLoader)
            if per_rank and info.shards_data and patch.will_shard(loader):
                return -(-length // info.dp_size)
            return length

        self.context.streams.patch_fork_rng()
        patches = PatchStack()
        patches.replace("torch.utils.data.DataLoader.__iter__", patched_iter)
        patches.replace("torch.utils.data.DataLoader.__len__", patched_len)

    def iterate(self, loader: DataLoader[Any], frame: Any) -> Iterator[Any]:
        """Begin a pass over ``loader`` for the loop in ``frame``: over shards or whole batches."""
        self.context.sampler_generators.update(sampler_generator_ids(loader))
        self.was_sharded[loader] = self._should_shard(loader, frame)
        if not self.was_sharded[loader]:
            return self._iterate_whole(loader, frame)
        if loader not in self.sharded_loaders:
            self.sharded_loaders[loader] = ShardedLoader(loader, self.context)
        sharded = self.sharded_loaders[loader]
        sharded.is_zipped = zips_loaders(frame)
        return sharded.iterate(loader, frame, cycled=bool(is_cycled(loader, frame)))

    def will_shard(self, loader: DataLoader[Any]) -> bool:
        """Return whether ``loader`` was sharded in its last pass, or would be in its first."""
        if loader in self.was_sharded:
            return self.was_sharded[loader]
        trained = self.context.trained
        registry = trained.registry
        return training(registry.peek() if registry.changed else trained.units)

    def expect_sharded(self, loader: DataLoader[Any]) -> None:
        """Let ``will_shard`` return True for ``loader``, which a Trainer asks before iterating."""
        self.was_sharded[loader] = True

    def report_remaining_draws(self) -> None:
        """Report random draws of passes that were not iterated to their end."""
        for sharded in self.sharded_loaders.values():
            sharded.report_remaining_draws()

    def _iterate_whole(self, loader: DataLoader[Any], frame: Any) -> Iterator[Any]:
        """Iterate over whole batches; if this rank trains on them, each begins a step.

        Gradients may accumulate over them, or the steps of one device are compared with those of
        ranks.
        """
        batches, trained = self._whole_batches(loader), self.context.trained
        is_baseline = self.limit.on and self.context.rank_info.dp_size == 1
        has_steps = self.context.steps.accumulation.on or is_baseline
        if not has_steps or not torch.is_grad_enabled():
            return batches
        trained.prepare_new()
        trains = trained.is_training() and loop_trains(frame) is not False
        return self._with_steps(batches, batch_sizes(loader)) if trains else batches

    def _whole_batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate over whole batches; inside a training step, draw as outside of it."""
        context, streams = self.context, self.context.streams
        if not streams.in_step:
            return context.original_iter(loader)
        with streams.notebook_stream():
            return draw_each(streams, context.original_iter(loader))

    def _with_steps(self, batches: Iterator[Any], sizes: Iterator[int | None]) -> Iterator[Any]:
        """Yield each batch as a shard that is the whole batch, of ``sizes`` samples where known."""
        steps = self.context.steps
        enclosing = steps.progress.begin_pass(batches)
        try:
            for batch, last in steps.with_last(batches):
                # The loader may have counted samples that its collate_fn drops.
                size = min(filter(None, (next(sizes), count_rows(batch))), default=1)
                steps.queue_batch(batches, batch, BatchShard(size, size), last)
                yield batch
        finally:
            steps.queue_end(batches, enclosing)

    def _should_shard(self, loader: DataLoader[Any], frame: Any) -> bool:
        """Return whether this pass over ``loader`` is sharded among ranks.

        Hands new optimizers to the strategy first, and gives notices about code whose results may
        differ from one device.
        """
        if not self.may_train() or loop_trains(frame) is False:
            return False
        if is_cycled(loader, frame) is None:  # with whole batches, each rank equals one device
            return False
        if loader.batch_size is None and loader.batch_sampler is None:
            self.context.recorder.notice("unsharded-batches", notices.UNBATCHED_LOADER)
            return False
        self.note_sizes(frame)
        return True

    def may_train(self) -> bool:
        """Return whether a loop that begins now may train; the strategy gets new optimizers."""
        if not self.context.rank_info.shards_data or not torch.is_grad_enabled():
            return False
        self.context.trained.prepare_new()
        return self.context.trained.is_training()

    def note_sizes(self, frame: Any) -> None:
        """Give notices about what the loop in ``frame`` computes from the size of its batches."""
        context, recorder = self.context, self.context.recorder
        if batch_size_use.loop_counts_samples(frame):
            recorder.notice("batch-sizes", notices.BATCH_SIZES)
        sizes = context.losses.diagnostics.size_inference
        sizes.loop_divides_by_batch_size |= batch_size_use.loop_divides_by_batch_size(frame)
        if batch_size_use.loop_compares_batch_size(frame):
            recorder.notice("size-checked", notices.SIZE_CHECKED)
