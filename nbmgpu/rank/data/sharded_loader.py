"""A DataLoader that trains is split: each rank gets its share of every global batch.

The batch that the user wrote stays the *global* batch.  All ranks run the user's
sampler with the same random numbers that one device would draw, and load the
samples of their own share only.  A stream without indices (IterableDataset) is
read by every rank, and cut after it is collated.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, sampler

from nbmgpu.rank.metrics.step_time import tokens_in
from nbmgpu.rank.reporting import notices
from nbmgpu.rank.rng.streams import DrawDetector, RandomStreams, generators_in, reachable_generators
from nbmgpu.rank.source_analysis.training_loops import loop_trains
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0

from .batch_shard import Outside, Share
from .batch_split import as_collated, cut, cut_indices, cut_rows, least_of_rest, pick_batch, rows
from .current_batch import weakly
from .custom_collate import Collated
from .read_ahead import LoaderAction
from .worker_random import DrawsInWorker

if TYPE_CHECKING:
    from .loader_patch import LoaderTap

SAMPLERS = {sampler.__name__, "accelerate.data_loader"}
"""Modules whose samplers draw from torch alone, and look at nothing."""

MANY = 10**6
"""Samples up to which all batches of a pass are drawn at once: it may be a pass without an end."""

WATCHED = 3
"""Steps of whose random draws people are told at once; of those of later ones after the pass."""


class InnerLoader(DataLoader[Any]):
    """Loads what a rank's share names; never split again."""


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
        self.random_data = False
        self.loaded = 0
        self.beside_others = False
        self.by_hand = False
        self.unfinished: DrawDetector | None = None

    def _inner(self, loader: DataLoader[Any]) -> InnerLoader:
        workers = (
            {
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "multiprocessing_context": loader.multiprocessing_context,
            }
            if loader.num_workers
            else {}
        )
        return InnerLoader(
            loader.dataset,
            batch_sampler=self.feed,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            generator=self.generator,
            **workers,
        )

    def _collate_as(self, loader: DataLoader[Any], inner: InnerLoader) -> None:
        """Let ``inner`` collate as ``loader`` does now: a cell may have given it another way."""
        if inner.num_workers:
            draws = DrawsInWorker(loader)
            inner.collate_fn, inner.worker_init_fn = draws, draws.begin
        else:
            inner.collate_fn = loader.collate_fn

    def run(
        self, loader: DataLoader[Any], frame: FrameType | None, cycled: bool = False
    ) -> Iterator[Any]:
        """Begin to iterate for the loop in ``frame`` over the rank's part of ``loader``.

        Batches are drawn as on one device.  For ``itertools.cycle``, which would hand kept batches
        out without a word, there is no end.
        """
        self.say_what_is_left()
        self.tap.streams.sync_from_rank_0()
        self.tap.session.divisors.look_again()
        if self.inner is not None:
            self._collate_as(loader, self.inner)
        with self.tap.streams.notebook_stream():
            seed, parts = (self._indexed if self.indexed else self._streamed)(loader)
        total = 0 if cycled else self._total(loader)
        own = reachable_generators(frame, but=self.tap.drawn)
        self.by_hand = loop_trains(frame) is None
        return self._pass(loader, seed, _for_ever(parts) if cycled else parts, total, own)

    def _pass(
        self,
        loader: DataLoader[Any],
        seed: int,
        parts: Iterator[tuple[Any, Share]],
        total: int,
        own: list[Any],
    ) -> Iterator[Any]:
        """Iterate once over ``parts`` of ``loader``, ``total`` batches or 0 if that is not known.

        ``own`` are the generators that the loop may draw from.  Only this pass may hold ``loader``.
        """
        session = self.session
        self.epoch += 1
        before, steps, outside = session.backwards, 0, session.enter(self)
        streams, this_pass = self.tap.streams, object()
        streams.enter_step(this_pass, seed)
        self._say_what_is_known()
        since: DrawDetector | None = None
        collated = Collated(loader, alone=self.indexed and session.batch == "global")
        try:
            for (batch, planned), last in session.accumulation.with_last(parts):
                session.split_passes += steps == 0
                steps += 1
                here = rows(batch)
                share = as_collated(planned, batch, here)
                begin = functools.partial(self._begin, share, last, steps, total, tokens_in(batch))
                session.ahead.play(LoaderAction(begin, True, self, weakly(batch), share, last))
                if share.is_part and not share.empty:
                    known = here in (share.samples, None)  # some tensors may have other lengths
                    session.batch_dependence.add_batch(
                        batch, share.samples if known else 0, share.whole
                    )
                collated.meet(batch, here, planned)
                session.joined |= collated.joined
                since = self.unfinished = since or DrawDetector(own)
                draws = DrawDetector(own) if session.backwards < WATCHED else None
                yield batch
                if draws is not None and session.backwards > before:
                    self._say_what_was_drawn(draws)
        finally:
            self.unfinished = None
            if since is not None and session.backwards > before and not self.random_data:
                # A sampler of the user's, or a stream, may have drawn as on one device.
                self._say_what_was_drawn(since, host=self.indexed and _is_torchs_own(loader))
            if collated.padded:
                session.recorder.notice("padded", notices.PADDED)
            streams.leave_step(this_pass)
            session.batch_dependence.stop_if_done()
            if steps > 1 and not session.ahead.reading:  # else training on it is yet to come
                self._look_for_training(before)
            leave = functools.partial(self._leave, outside, before if steps else None)
            session.ahead.play(LoaderAction(leave, begins=False, source=self))

    def _begin(self, share: Share, last: bool, step: int, total: int, tokens: int) -> None:
        """Begin the step of a batch, of which this rank has so many ``tokens``."""
        if tokens and not share.empty:
            self.session.throughput.add_tokens(tokens * share.whole / share.samples)
        self.session.take(share, self, last)
        self.session.recorder.progress(
            "loader", label="epoch", step=step, total=total, epoch=self.epoch
        )

    def _leave(self, outside: Outside, backwards: int | None) -> None:
        """Let the pass be over; before its first batch there had been ``backwards``."""
        self.session.leave(self, outside)
        self._look_for_training(backwards)

    def _look_for_training(self, backwards: int | None) -> None:
        self.session.untrained |= self.session.backwards == backwards

    def _total(self, loader: DataLoader[Any]) -> int:
        try:
            return len(loader)
        except TypeError:
            return 0

    def _say_what_is_known(self) -> None:
        if self.session.has_batch_norm():
            self.session.recorder.notice("batch-norm", notices.BATCH_NORM)

    def say_what_is_left(self) -> None:
        """Say what was drawn since batches were taken from a pass that has not come to its end."""
        if self.unfinished is not None and self.unfinished.torch_drew:
            self.session.recorder.notice("random-step", notices.RANDOM_STEP)

    def _say_what_was_drawn(self, draws: DrawDetector, host: bool = True) -> None:
        if draws.torch_drew:
            self.session.recorder.notice("random-step", notices.RANDOM_STEP)
        elif self.tap.streams.drew_in_fork or (host and draws.host_drew):
            self.session.recorder.notice("random-host", notices.RANDOM_HOST)

    def _draw_seed(self, loader: DataLoader[Any]) -> int:
        """Draw the workers' seed when one device would: per pass, once with lasting workers."""
        if self.seed is None or not loader.persistent_workers:
            drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            self.seed = int(drawn.item())
        return self.seed

    def _indexed(self, loader: DataLoader[Any]) -> tuple[int, Iterator[tuple[Any, Share]]]:
        """Draw the batches as one device would; return the seed, and what loads our shares."""
        batches = iter(loader.batch_sampler)  # type: ignore[arg-type]
        seed = self._draw_seed(loader)
        by_torch = _is_torchs_own(loader)
        short = by_torch and len(loader.batch_sampler.sampler) <= MANY  # type: ignore[union-attr]
        drawn = drawn_in(self.tap.streams, batches)
        if by_torch and loader.num_workers:  # they are told their first batches at once
            first = list(itertools.islice(batches, None if short else 1))
            drawn = itertools.chain(first, drawn)
        elif short:
            drawn = _at_once(self.tap.streams, batches)
        elif not by_torch:  # it may look at the training, or never end: one batch at a time
            drawn = _rank_0s(drawn)
        return seed, self._load(drawn, seed, by_torch, loader.batch_size)

    def _load(
        self, batches: Iterator[Any], seed: int, by_torch: bool, size: int | None
    ) -> Iterator[tuple[Any, Share]]:
        """Load the samples of the rank's shares.

        ``by_torch`` says that the sampler draws from torch alone, not from what a dataset holds.
        """
        assert self.inner is not None
        shares: collections.deque[Share] = collections.deque()
        self.feed.lists = self._lists(batches, shares, size)
        self.generator.manual_seed((seed + self.session.rank) % 2**63)
        loaded = self.tap.iterate(self.inner)
        held = getattr(self.inner.dataset, "__dict__", {}) if by_torch else {}
        own = generators_in(held, but=self.tap.drawn)
        for batch, drew in loaded if self.inner.num_workers else self._load_here(loaded, own):
            if drew:
                self.random_data = True
                self.session.recorder.notice("random-data", notices.RANDOM_DATA)
            yield batch, shares.popleft()

    def _load_here(self, loaded: Iterator[Any], own: list[Any]) -> Iterator[tuple[Any, bool]]:
        """Load batches in this process; tell of each whether its samples were seen to draw.

        They do so from a stream of the rank's own, or from generators of their ``own``.  The first
        batch of a pass is watched, and the 1st, 2nd, 4th, 8th ... of all.
        """
        host = self.tap.streams.host
        assert host is not None
        watched = True
        while True:
            draws = None
            try:
                with host.loading(watched):
                    draws = DrawDetector(own, host=False) if watched else None
                    batch = next(loaded)
            except StopIteration:
                return
            drew = draws is not None and (host.drew_last or draws.torch_drew or draws.host_drew)
            self.loaded += 1
            watched = self.loaded & (self.loaded + 1) == 0  # the next one
            yield batch, drew

    def _lists(
        self, batches: Iterator[Any], shares: collections.deque[Share], size: int | None
    ) -> Iterator[list[Any]]:
        """Yield the rank's index lists, and note their shares in the same order.

        Batches have ``size`` samples, but for the last one.
        """
        rank, world_size = self.session.rank, self.session.world_size
        if self.session.batch == "per-rank":
            while group := list(itertools.islice(batches, world_size)):
                indices, share = pick_batch(group, rank)
                shares.append(share)
                yield indices
            return
        least = self.session.least_samples()
        for batch in batches:
            fewest = max(least, self._least_of_rest(len(batch), size))
            indices, share = cut_indices(batch, rank, world_size, fewest)
            shares.append(share)
            yield indices

    def _least_of_rest(self, samples: int, size: int | None) -> int:
        """Return the fewest samples of a share; beside other loaders, none goes to one rank."""
        # Workers are told of their first batches before the loader beside this one begins.
        if self.beside_others or self.session.reads_others(self):
            return 1
        return least_of_rest(samples, size, self.session.world_size)

    def _streamed(self, loader: DataLoader[Any]) -> tuple[int, Iterator[tuple[Any, Share]]]:
        """Read the whole stream as one device would; return a seed, and what keeps our rows."""
        loaded = self.tap.iterate(loader)
        # Workers have generators of their own; else the stream draws from this process's.
        share = RandomStreams.broadcast_host_states if loader.num_workers == 0 else None
        batches = drawn_in(self.tap.streams, loaded, share)
        return torch.initial_seed(), self._cut(batches, loader.batch_size)

    def _cut(self, batches: Iterator[Any], size: int | None) -> Iterator[tuple[Any, Share]]:
        """Keep the rank's rows of every batch.

        What has ``size`` rows, or less after such batches, is taken for a batch of samples.
        """
        session, known = self.session, False
        for batch in batches:
            whole = rows(batch)
            known = known or whole == size
            if whole is None or not known or whole > (size or 0):
                session.recorder.notice("whole-batches", notices.UNCUT_BATCHES)
                yield batch, Share(1, 1)
                continue
            ranks = session.world_size
            least = max(session.least_samples(), self._least_of_rest(whole, size))
            part, mine = cut(whole, session.rank, ranks, least)
            yield cut_rows(batch, part), mine


def _is_torchs_own(loader: DataLoader[Any]) -> bool:
    """Tell whether the sampler is torch's, so that it may be drawn from all at once."""
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        return False
    listed = isinstance(batches.sampler, list | tuple | range)
    return listed or type(batches.sampler).__module__ in SAMPLERS


def drawn_in(
    streams: RandomStreams, items: Iterator[Any], before: Callable[[], None] | None = None
) -> Iterator[Any]:
    """Take each item while the notebook's random stream is in place, after ``before()``."""
    while True:
        if before is not None:
            before()
        with streams.notebook_stream():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def _at_once(streams: RandomStreams, items: Iterator[Any]) -> Iterator[Any]:
    """Take all items as ``drawn_in`` does, when the first is asked for."""
    with streams.notebook_stream():
        taken = list(items)
    yield from taken


def _for_ever(items: Iterator[Any]) -> Iterator[Any]:
    """Take all items, and the same ones again and again."""
    kept = []
    for item in items:
        kept.append(item)
        yield item
    while kept:
        yield from kept


def _rank_0s(items: Iterator[Any]) -> Iterator[Any]:
    """Take each item from rank 0: a sampler of the user's may not be the same on all ranks."""
    while (item := broadcast_from_rank_0(next(items, None))) is not None:
        yield item
