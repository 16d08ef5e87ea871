"""A DataLoader that trains is split: each rank gets its slice of every global batch.

The batch that the user wrote stays the *global* batch.  All ranks run the user's
sampler with the same random numbers that one device would draw, and load the
samples of their own slice only.  A stream without indices (IterableDataset) is
read by every rank, and cut after it is collated.
"""

from __future__ import annotations

import collections
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, sampler

from . import notices
from .loops import loop_trains
from .session import Session, Share
from .shared import from_rank_0
from .slices import cut, cut_indices, cut_rows, pick_batch, rows
from .streams import Draws, Streams
from .units import training

WATCHED = 3
"""Steps in which random draws are looked for."""


class LoaderTap:
    """Takes the place of ``DataLoader.__iter__`` in a rank."""

    def __init__(self, session: Session) -> None:
        """Serve ``session``."""
        self.session = session
        self.iterate = DataLoader.__iter__
        self.length = DataLoader.__len__
        self.splits: weakref.WeakKeyDictionary[Any, SplitLoader] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Put the tap in place, for the rest of this process."""
        tap = self

        @functools.wraps(DataLoader.__iter__)
        def iterate(loader: DataLoader[Any]) -> Iterator[Any]:
            if isinstance(loader, _InnerLoader) or not tap.splits_now(loader, sys._getframe(1)):
                return tap.iterate(loader)
            split = tap.splits.get(loader)
            if split is None:
                split = tap.splits[loader] = SplitLoader(loader, tap)
            return split.run(loader)

        @functools.wraps(DataLoader.__len__)
        def length(loader: DataLoader[Any]) -> int:
            count, session = tap.length(loader), tap.session
            if session.batch == "global" or isinstance(loader, _InnerLoader):
                return count
            if session.distributes and torch.is_grad_enabled():
                session.activate()  # a schedule may ask before the first batch is drawn
            if session.distributes and training(session.units):
                return -(-count // session.world_size)
            return count

        DataLoader.__iter__ = iterate  # type: ignore[method-assign, assignment]
        DataLoader.__len__ = length  # type: ignore[method-assign]

    def splits_now(self, loader: DataLoader[Any], frame: Any) -> bool:
        """Tell whether this iteration of ``loader`` is to be split among ranks."""
        session = self.session
        if not session.distributes or not torch.is_grad_enabled():
            return False
        session.activate()
        if not training(session.units) or loop_trains(frame) is False:
            return False
        if loader.batch_size is None and loader.batch_sampler is None:
            session.recorder.notice("whole-batches", notices.WHOLE_BATCHES)
            return False
        return True


class _InnerLoader(DataLoader[Any]):
    """Loads what a rank's slice names; never split again."""


class _Feed:
    """A batch sampler that hands out the index lists of the pass under way."""

    def __init__(self) -> None:
        self.lists: Iterable[list[Any]] = ()

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.lists)


class SplitLoader:
    """A user's loader as one rank sees it.  Lives as long as the loader, as workers may."""

    def __init__(self, loader: DataLoader[Any], tap: LoaderTap) -> None:
        """Prepare to split ``loader``."""
        self.tap = tap
        self.session = tap.session
        self.epoch = 0
        self.feed = _Feed()
        self.generator = torch.Generator()
        self.indexed = not isinstance(loader.dataset, IterableDataset)
        self.inner = self._inner(loader) if self.indexed else None
        self.seed: int | None = None

    def _inner(self, loader: DataLoader[Any]) -> _InnerLoader:
        workers = (
            {
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "multiprocessing_context": loader.multiprocessing_context,
            }
            if loader.num_workers
            else {}
        )
        return _InnerLoader(
            loader.dataset,
            batch_sampler=self.feed,  # type: ignore[arg-type]
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            generator=self.generator,
            **workers,
        )

    def run(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Iterate once over the rank's part of ``loader``, which only this pass may hold."""
        session = self.session
        self.epoch += 1
        before, steps, outer = session.backwards, 0, session.share
        streams = Streams(session.rank)
        total = self._total(loader)
        parts = (self._indexed if self.indexed else self._streamed)(loader, streams)
        self._say_what_is_known()
        try:
            for batch, share in parts:
                steps += 1
                session.take(share, self)
                session.recorder.progress(
                    "loader", label="epoch", step=steps, total=total, epoch=self.epoch
                )
                draws = Draws() if session.backwards < WATCHED else None
                yield batch
                if draws is not None and session.backwards > before:
                    self._say_what_was_drawn(draws)
        finally:
            streams.leave_step()
            session.share = outer
            session.splits += 1
            if steps and session.backwards == before:
                session.recorder.notice("not-trained", notices.NOT_TRAINED)

    def _total(self, loader: DataLoader[Any]) -> int:
        try:
            return len(loader)
        except TypeError:
            return 0

    def _say_what_is_known(self) -> None:
        if self.session.has_batch_norm():
            self.session.recorder.notice("batch-norm", notices.BATCH_NORM)

    def _say_what_was_drawn(self, draws: Draws) -> None:
        if draws.of_torch:
            self.session.recorder.notice("random-step", notices.RANDOM_STEP)
        elif draws.of_host:
            self.session.recorder.notice("random-host", notices.RANDOM_HOST)

    def _draw_seed(self, loader: DataLoader[Any]) -> int:
        """Draw the workers' seed when one device would: per pass, once with lasting workers."""
        if self.seed is None or not loader.persistent_workers:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            self.seed = int(drawn.item())
        return self.seed

    def _indexed(self, loader: DataLoader[Any], streams: Streams) -> Iterator[tuple[Any, Share]]:
        """Load the samples of the rank's slices."""
        assert self.inner is not None
        batches = iter(loader.batch_sampler)  # type: ignore[arg-type]
        seed = self._draw_seed(loader)
        at_once = _is_torchs_own(loader)
        if at_once:
            batches = iter(list(batches))
            streams.enter_step(seed)
        else:  # it may look at the training, or never end: one batch at a time
            streams.enter_step(seed)
            batches = _rank_0s(_drawn_in(streams, batches))
        shares: collections.deque[Share] = collections.deque()
        self.feed.lists = self._lists(batches, shares)
        self.generator.manual_seed((seed + self.session.rank) % 2**63)
        loaded = self.tap.iterate(self.inner)
        watched = self.session.backwards < WATCHED
        while True:
            draws = Draws() if watched else None
            try:
                batch = next(loaded)
            except StopIteration:
                return
            # A sampler that draws as it goes does so in here; torch's stream is not the rank's then.
            if draws is not None and (draws.of_torch or (at_once and draws.of_host)):
                self.session.recorder.notice("random-data", notices.RANDOM_DATA)
            watched = False
            yield batch, shares.popleft()

    def _lists(
        self, batches: Iterator[Any], shares: collections.deque[Share]
    ) -> Iterator[list[Any]]:
        """Yield the rank's index lists, and note their shares in the same order."""
        rank, world_size = self.session.rank, self.session.world_size
        if self.session.batch == "per-rank":
            while group := list(itertools.islice(batches, world_size)):
                indices, share = pick_batch(group, rank)
                shares.append(share)
                yield indices
            return
        least = self.session.least_samples()
        for batch in batches:
            indices, share = cut_indices(batch, rank, world_size, least)
            shares.append(share)
            yield indices

    def _streamed(self, loader: DataLoader[Any], streams: Streams) -> Iterator[tuple[Any, Share]]:
        """Read the whole stream and keep the rank's rows of every batch."""
        session = self.session
        loaded = self.tap.iterate(loader)
        streams.enter_step(torch.initial_seed())
        # Workers have generators of their own; else the stream draws from this process's.
        share = Streams.share_host if loader.num_workers == 0 else None
        for batch in _drawn_in(streams, loaded, share):
            whole = rows(batch)
            if whole is None:
                session.recorder.notice("whole-batches", notices.UNCUT_BATCHES)
                yield batch, Share(1, 1)
                continue
            part, mine = cut(whole, session.rank, session.world_size, session.least_samples())
            yield cut_rows(batch, part), mine


def _is_torchs_own(loader: DataLoader[Any]) -> bool:
    """Tell whether the sampler is torch's, so that it may be drawn from all at once."""
    own = type(loader.sampler).__module__ == sampler.__name__
    return own and type(loader.batch_sampler) is BatchSampler


def _drawn_in(
    streams: Streams, items: Iterator[Any], before: Callable[[], None] | None = None
) -> Iterator[Any]:
    """Take each item while the notebook's random stream is in place, after ``before()``."""
    while True:
        if before is not None:
            before()
        with streams.notebooks():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def _rank_0s(items: Iterator[Any]) -> Iterator[Any]:
    """Take each item from rank 0: a sampler of the user's may not be the same on all ranks."""
    while (item := from_rank_0(next(items, None))) is not None:
        yield item
