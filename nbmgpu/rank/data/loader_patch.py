"""Which loaders are split among ranks: those that a training loop of the cell reads.

Others are whole on every rank, so that what is computed with them is one device's.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.rng.streams import RandomStreams, sampler_generator_ids
from nbmgpu.rank.session import Session
from nbmgpu.rank.source_analysis import batch_size_use
from nbmgpu.rank.source_analysis.loader_loops import is_cycled, zips_loaders
from nbmgpu.rank.source_analysis.training_loops import loop_trains
from nbmgpu.rank.training.optimizer_registry import training

from .batch_shard import Share
from .batch_split import rows, sizes
from .current_batch import weakly
from .read_ahead import LoaderAction
from .sharded_loader import InnerLoader, SplitLoader, drawn_in


class LoaderTap:
    """Takes the place of ``DataLoader.__iter__`` in a rank."""

    def __init__(self, session: Session) -> None:
        """Serve ``session``."""
        self.session = session
        self.iterate = DataLoader.__iter__
        self.length = DataLoader.__len__
        session.loaders = self
        self.streams = session.streams = RandomStreams(session.rank)
        self.was_split: MutableMapping[Any, bool] = weakref.WeakKeyDictionary()
        self.split_loaders: MutableMapping[Any, SplitLoader] = weakref.WeakKeyDictionary()
        self.drawn: set[int] = set()

    def install(self) -> None:
        """Put the tap in place, for the rest of this process."""
        tap = self

        @functools.wraps(DataLoader.__iter__)
        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            if isinstance(loader, InnerLoader):
                return tap.iterate(loader)
            batches = tap.begin(loader, sys._getframe(1))
            budget = tap.session.budget
            return budget.watched(batches, tap.session) if budget.on else batches

        @functools.wraps(DataLoader.__len__)
        def length(loader: DataLoader[Any]) -> int:
            count, session = tap.length(loader), tap.session
            per_rank = session.batch == "per-rank" and not isinstance(loader, InnerLoader)
            if per_rank and session.distributes and tap.will_split(loader):
                return -(-count // session.world_size)
            return count

        self.streams.patch_fork_rng()
        DataLoader.__iter__ = iterate  # type: ignore[method-assign, assignment]
        DataLoader.__len__ = length  # type: ignore[method-assign]

    def begin(self, loader: DataLoader[Any], frame: Any) -> Iterator[Any]:
        """Begin to iterate over ``loader`` for the loop in ``frame``: over our part, or all."""
        self.drawn |= sampler_generator_ids(loader)
        self.was_split[loader] = self._decide(loader, frame)
        if not self.was_split[loader]:
            return self.counted(loader, frame)
        if loader not in self.split_loaders:
            self.split_loaders[loader] = SplitLoader(loader, self)
        split = self.split_loaders[loader]
        split.beside_others = zips_loaders(frame)
        return split.run(loader, frame, cycled=bool(is_cycled(loader, frame)))

    def will_split(self, loader: DataLoader[Any]) -> bool:
        """Tell whether ``loader`` was split when it was last iterated, or else would be now."""
        if loader in self.was_split:
            return self.was_split[loader]
        watch = self.session.watch
        return training(watch.peek() if watch.changed else self.session.units)

    def whole(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate over all of ``loader``; in a training step, it draws as outside of it."""
        if not self.streams.in_step:
            return self.iterate(loader)
        with self.streams.notebook_stream():
            return drawn_in(self.streams, self.iterate(loader))

    def counted(self, loader: DataLoader[Any], frame: Any) -> Iterator[Any]:
        """Iterate over all of ``loader``; where this rank trains on that, count the batches.

        Gradients may accumulate over them, or one device's steps are to be those of ranks.
        """
        session = self.session
        batches = self.whole(loader)
        alone = session.budget.on and session.world_size == 1
        if not (session.accumulation.on or alone) or not torch.is_grad_enabled():
            return batches
        session.activate()
        trains = training(session.units) and loop_trains(frame) is not False
        return self._as_shares(batches, sizes(loader)) if trains else batches

    def _as_shares(self, batches: Iterator[Any], known: Iterator[int | None]) -> Iterator[Any]:
        """Take each batch, of as many samples as are ``known``, as a share that is the whole."""
        session = self.session
        outside = session.enter(batches)
        try:
            for batch, last in session.accumulation.with_last(batches):
                # The loader may have counted samples that its collate_fn leaves out.
                size = min(filter(None, (next(known), rows(batch))), default=1)
                share = Share(size, size)
                begin = functools.partial(session.take, share, batches, last)
                session.ahead.play(LoaderAction(begin, True, batches, weakly(batch), share, last))
                yield batch
        finally:
            leave = functools.partial(session.leave, batches, outside)
            session.ahead.play(LoaderAction(leave, begins=False, source=batches))

    def _decide(self, loader: DataLoader[Any], frame: Any) -> bool:
        """Tell whether this iteration of ``loader`` is to be split among ranks.

        Hands new optimizers to the strategy before, and tells the user what cannot be exact.
        """
        session = self.session
        if not session.distributes or not torch.is_grad_enabled():
            return False
        session.activate()
        if not training(session.units) or loop_trains(frame) is False:
            return False
        if is_cycled(loader, frame) is None:  # whole, each rank has one device's batches
            return False
        if loader.batch_size is None and loader.batch_sampler is None:
            session.recorder.notice("whole-batches", notices.WHOLE_BATCHES)
            return False
        if batch_size_use.loop_counts_samples(frame):
            session.recorder.notice("batch-sizes", notices.BATCH_SIZES)
        session.chances.by_ratio |= batch_size_use.loop_divides_by_batch_size(frame)
        if batch_size_use.loop_compares_batch_size(frame):
            session.recorder.notice("size-asked", notices.SIZE_ASKED)
        return True
