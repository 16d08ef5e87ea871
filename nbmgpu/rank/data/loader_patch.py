"""Patches ``DataLoader``: loaders that a training loop of the cell reads are sharded among ranks.

All other loaders yield whole batches on every rank, so results computed from them equal those of
one device.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from nbmgpu.patches import PatchStack
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.rng.generators import sampler_generator_ids
from nbmgpu.rank.rng.streams import RandomStreams
from nbmgpu.rank.session import Session
from nbmgpu.rank.source_analysis import batch_size_use
from nbmgpu.rank.source_analysis.loader_loops import is_cycled, zips_loaders
from nbmgpu.rank.source_analysis.training_loops import loop_trains
from nbmgpu.rank.training.optimizer_registry import training

from .batch_sampling import draw_each
from .batch_shard import BatchShard
from .batch_split import batch_sizes, count_rows
from .batch_tensors import weak_tensors
from .loader_events import LoaderEvent
from .shard_reader import ShardLoader
from .sharded_loader import ShardedLoader


class LoaderPatch:
    """Replaces ``DataLoader.__iter__`` and ``DataLoader.__len__`` in a rank.

    Attributes:
        original_iter, original_len: the methods of ``DataLoader``.
        streams: the rank's random streams.
        was_sharded: whether each loader was sharded when it was last iterated.
        sharded_loaders: the sharded view of each loader.
        sampler_generators: ids of the generators that samplers draw from, alike on all ranks.
    """

    def __init__(self, session: Session) -> None:
        """Prepare the patch for ``session``."""
        self.session = session
        self.original_iter = DataLoader.__iter__
        self.original_len = DataLoader.__len__
        session.loaders = self
        self.streams = session.streams = RandomStreams(session.dp_rank)
        self.was_sharded: MutableMapping[Any, bool] = weakref.WeakKeyDictionary()
        self.sharded_loaders: MutableMapping[Any, ShardedLoader] = weakref.WeakKeyDictionary()
        self.sampler_generators: set[int] = set()

    def install(self) -> None:
        """Install the patch for the rest of this process."""
        patch = self

        @functools.wraps(DataLoader.__iter__)
        def patched_iter(loader: DataLoader[Any]) -> Iterator[Any]:
            if isinstance(loader, ShardLoader):
                return patch.original_iter(loader)
            batches = patch.iterate(loader, sys._getframe(1))
            budget = patch.session.budget
            return budget.watched(batches, patch.session) if budget.on else batches

        @functools.wraps(DataLoader.__len__)
        def patched_len(loader: DataLoader[Any]) -> int:
            length, session = patch.original_len(loader), patch.session
            per_rank = session.batch == "per-rank" and not isinstance(loader, ShardLoader)
            if per_rank and session.distributes and patch.will_shard(loader):
                return -(-length // session.dp_size)
            return length

        self.streams.patch_fork_rng()
        patches = PatchStack()
        patches.replace("torch.utils.data.DataLoader.__iter__", patched_iter)
        patches.replace("torch.utils.data.DataLoader.__len__", patched_len)

    def iterate(self, loader: DataLoader[Any], frame: Any) -> Iterator[Any]:
        """Begin a pass over ``loader`` for the loop in ``frame``: over shards or whole batches."""
        self.sampler_generators |= sampler_generator_ids(loader)
        self.was_sharded[loader] = self._should_shard(loader, frame)
        if not self.was_sharded[loader]:
            return self._iterate_whole(loader, frame)
        if loader not in self.sharded_loaders:
            self.sharded_loaders[loader] = ShardedLoader(loader, self)
        sharded = self.sharded_loaders[loader]
        sharded.is_zipped = zips_loaders(frame)
        return sharded.iterate(loader, frame, cycled=bool(is_cycled(loader, frame)))

    def will_shard(self, loader: DataLoader[Any]) -> bool:
        """Return whether ``loader`` was sharded in its last pass, or would be in its first."""
        if loader in self.was_sharded:
            return self.was_sharded[loader]
        watch = self.session.watch
        return training(watch.peek() if watch.changed else self.session.units)

    def _iterate_whole(self, loader: DataLoader[Any], frame: Any) -> Iterator[Any]:
        """Iterate over whole batches; if this rank trains on them, each begins a step.

        Gradients may accumulate over them, or the steps of one device are compared with those of
        ranks.
        """
        session = self.session
        batches = self._whole_batches(loader)
        is_baseline = session.budget.on and session.world_size == 1
        if not (session.accumulation.on or is_baseline) or not torch.is_grad_enabled():
            return batches
        session.activate()
        trains = training(session.units) and loop_trains(frame) is not False
        return self._with_steps(batches, batch_sizes(loader)) if trains else batches

    def _whole_batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate over whole batches; inside a training step, draw as outside of it."""
        if not self.streams.in_step:
            return self.original_iter(loader)
        with self.streams.notebook_stream():
            return draw_each(self.streams, self.original_iter(loader))

    def _with_steps(self, batches: Iterator[Any], sizes: Iterator[int | None]) -> Iterator[Any]:
        """Yield each batch as a shard that is the whole batch, of ``sizes`` samples where known."""
        session = self.session
        enclosing = session.enter(batches)
        try:
            for batch, last in session.accumulation.with_last(batches):
                # The loader may have counted samples that its collate_fn drops.
                size = min(filter(None, (next(sizes), count_rows(batch))), default=1)
                shard = BatchShard(size, size)
                begin = functools.partial(session.take, shard, batches, last)
                session.ahead.dispatch(
                    LoaderEvent(begin, True, batches, weak_tensors(batch), shard, last)
                )
                yield batch
        finally:
            end = functools.partial(session.leave, batches, enclosing)
            session.ahead.dispatch(LoaderEvent(end, begins_step=False, source=batches))

    def _should_shard(self, loader: DataLoader[Any], frame: Any) -> bool:
        """Return whether this pass over ``loader`` is sharded among ranks.

        Hands new optimizers to the strategy first, and gives notices about code whose results may
        differ from one device.
        """
        session = self.session
        if not session.distributes or not torch.is_grad_enabled():
            return False
        session.activate()
        if not training(session.units) or loop_trains(frame) is False:
            return False
        if is_cycled(loader, frame) is None:  # with whole batches, each rank equals one device
            return False
        if loader.batch_size is None and loader.batch_sampler is None:
            session.recorder.notice("whole-batches", notices.UNBATCHED_LOADER)
            return False
        if batch_size_use.loop_counts_samples(frame):
            session.recorder.notice("batch-sizes", notices.BATCH_SIZES)
        session.chances.loop_divides_by_batch_size |= batch_size_use.loop_divides_by_batch_size(
            frame
        )
        if batch_size_use.loop_compares_batch_size(frame):
            session.recorder.notice("size-asked", notices.SIZE_CHECKED)
        return True
