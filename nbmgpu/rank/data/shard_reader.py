"""Reads a rank's shard of every global batch of a DataLoader.

With a map-style dataset, every rank runs the user's sampler and loads only the samples of its own
shard.  An IterableDataset has no indices: every rank reads the whole stream and slices the batches
after collation.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from nbmgpu.rank.reporting import notices
from nbmgpu.rank.rng.draw_detector import DrawDetector
from nbmgpu.rank.rng.generators import generators_in
from nbmgpu.rank.rng.streams import RandomStreams

from .batch_sampling import draw_each, sample_batches, uses_torch_sampler
from .batch_shard import BatchShard
from .batch_split import count_rows, select_batch, slice_rows, split_batch, split_indices
from .worker_draws import WorkerDrawDetector

if TYPE_CHECKING:
    from .loader_context import LoaderContext

MinSamples = Callable[[int, int | None], int]
"""Returns the minimum shard size for a batch of so many samples, given the loader's batch size."""


class ShardLoader(DataLoader[Any]):
    """Loads the samples of a rank's shards; is never sharded itself."""


class _IndexLists:
    """A batch sampler that yields the index lists of the current pass."""

    def __init__(self) -> None:
        self.lists: Iterable[list[Any]] = ()

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.lists)


class IndexedShardReader:
    """Reads the shards of a map-style dataset.

    Attributes:
        has_random_samples: whether loading samples was seen to draw random numbers.
    """

    def __init__(self, loader: DataLoader[Any], context: LoaderContext) -> None:
        """Prepare to read ``loader``, without keeping a reference to it."""
        self._context = context
        self._sampler = _IndexLists()
        self._generator = torch.Generator()
        self._inner = self._shard_loader(loader)
        self._seed: int | None = None
        self._seed_state: torch.Tensor | None = None
        self._num_loaded = 0
        self.has_random_samples = False

    def _shard_loader(self, loader: DataLoader[Any]) -> ShardLoader:
        workers = (
            {
                "prefetch_factor": loader.prefetch_factor,
                "persistent_workers": loader.persistent_workers,
                "multiprocessing_context": loader.multiprocessing_context,
            }
            if loader.num_workers
            else {}
        )
        return ShardLoader(
            loader.dataset,
            batch_sampler=self._sampler,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            generator=self._generator,
            **workers,
        )

    def read(
        self, loader: DataLoader[Any], min_samples: MinSamples
    ) -> tuple[int, Iterator[tuple[Any, BatchShard]]]:
        """Begin a pass: return the seed that one device would draw, and the rank's shards.

        Call it while the notebook's random stream is active.
        """
        self._update_collate(loader)
        batches = iter(loader.batch_sampler)  # type: ignore[arg-type]
        seed = self._draw_seed(loader)
        batches = sample_batches(loader, batches, self._context.streams)
        lists = functools.partial(self._index_lists, batches, loader.batch_size, min_samples)
        return seed, self._load(lists, seed, uses_torch_sampler(loader))

    def _update_collate(self, loader: DataLoader[Any]) -> None:
        """Collate as ``loader`` does now: a cell may have replaced its ``collate_fn``."""
        inner = self._inner
        if inner.num_workers:
            detector = WorkerDrawDetector(loader)
            inner.collate_fn, inner.worker_init_fn = detector, detector.init_worker
        else:
            inner.collate_fn = loader.collate_fn

    def _draw_seed(self, loader: DataLoader[Any]) -> int:
        """Draw the workers' base seed when one device would: per pass, or once if persistent."""
        if self._seed is None or not loader.persistent_workers:
            if not self._context.rank_info.splits_batches:  # then workers draw as on one device
                self._seed_state = (loader.generator or torch.default_generator).get_state()
            drawn = torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            self._seed = int(drawn.item())
        return self._seed

    def _load(
        self,
        index_lists: Callable[[collections.deque[BatchShard]], Iterator[list[Any]]],
        seed: int,
        torch_sampler: bool,
    ) -> Iterator[tuple[Any, BatchShard]]:
        """Yield the loaded batches of the rank, each with its shard.

        Args:
            index_lists: yields the rank's index lists and appends their shards to a queue.
            seed: the base seed of the pass.
            torch_sampler: whether the sampler draws from torch only, and not from generators that
                the dataset holds.
        """
        shards: collections.deque[BatchShard] = collections.deque()
        self._sampler.lists = index_lists(shards)
        if self._seed_state is None:
            self._generator.manual_seed((seed + self._context.rank_info.dp_rank) % 2**63)
        else:
            self._generator.set_state(self._seed_state)
        loaded = self._context.original_iter(self._inner)
        attributes = getattr(self._inner.dataset, "__dict__", {}) if torch_sampler else {}
        own = generators_in(attributes, excluded=self._context.sampler_generators)
        for batch, drew in loaded if self._inner.num_workers else self._load_here(loaded, own):
            if drew and self._context.rank_info.splits_batches:
                self.has_random_samples = True
                self._context.recorder.notice("random-data", notices.RANDOM_DATA)
            yield batch, shards.popleft()

    def _load_here(self, loaded: Iterator[Any], own: list[Any]) -> Iterator[tuple[Any, bool]]:
        """Load batches in this process; yield with each whether its samples were seen to draw.

        They draw from the rank's own host stream, or from the generators ``own``.  The first batch
        of a pass is checked, and the 1st, 2nd, 4th, 8th ... of all.
        """
        host = self._context.streams.host
        if host is None:
            yield from ((batch, False) for batch in loaded)
            return
        check = True
        while True:
            draws = None
            try:
                with host.loading(check):
                    draws = DrawDetector(own, host=False) if check else None
                    batch = next(loaded)
            except StopIteration:
                return
            drew = draws is not None and (host.drew_last or draws.torch_drew or draws.host_drew)
            self._num_loaded += 1
            check = self._num_loaded & (self._num_loaded + 1) == 0  # the next batch
            yield batch, drew

    def _index_lists(
        self,
        batches: Iterator[Any],
        batch_size: int | None,
        min_samples: MinSamples,
        shards: collections.deque[BatchShard],
    ) -> Iterator[list[Any]]:
        """Yield the rank's index lists, and append their shards to ``shards`` in the same order.

        All ``batches`` but the last have ``batch_size`` samples.
        """
        info = self._context.rank_info
        if info.batch == "per-rank":
            while group := list(itertools.islice(batches, info.dp_size)):
                indices, shard = select_batch(group, info.dp_rank)
                shards.append(shard)
                yield indices
            return
        least = self._context.trained.min_samples()
        for batch in batches:
            fewest = max(least, min_samples(len(batch), batch_size))
            indices, shard = split_indices(batch, info.dp_rank, info.dp_size, fewest)
            shards.append(shard)
            yield indices


class StreamShardReader:
    """Reads the shards of an IterableDataset, which every rank reads as a whole."""

    has_random_samples = False

    def __init__(self, context: LoaderContext) -> None:
        """Prepare to read a stream."""
        self._context = context

    def read(
        self, loader: DataLoader[Any], min_samples: MinSamples
    ) -> tuple[int, Iterator[tuple[Any, BatchShard]]]:
        """Begin a pass: return a seed, and the rank's rows of the batches one device would read."""
        loaded = self._context.original_iter(loader)
        # Workers have their own generators; without workers, the stream draws from this process's.
        before = RandomStreams.broadcast_host_states if loader.num_workers == 0 else None
        batches = draw_each(self._context.streams, loaded, before)
        return torch.initial_seed(), self._slice(batches, loader.batch_size, min_samples)

    def _slice(
        self, batches: Iterator[Any], batch_size: int | None, min_samples: MinSamples
    ) -> Iterator[tuple[Any, BatchShard]]:
        """Yield the rank's rows of every batch.

        An item counts as a batch of samples if it has ``batch_size`` rows, or fewer after such an
        item.  Other items are yielded whole.
        """
        context, info, batch_size_seen = self._context, self._context.rank_info, False
        for batch in batches:
            num_rows = count_rows(batch)
            batch_size_seen = batch_size_seen or num_rows == batch_size
            if num_rows is None or not batch_size_seen or num_rows > (batch_size or 0):
                context.recorder.notice("unsharded-batches", notices.UNSPLITTABLE_BATCHES)
                yield batch, BatchShard(1, 1)
                continue
            least = max(context.trained.min_samples(), min_samples(num_rows, batch_size))
            part, shard = split_batch(num_rows, info.dp_rank, info.dp_size, least)
            yield slice_rows(batch, part), shard
