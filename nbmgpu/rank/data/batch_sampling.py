"""Draws global batches from a loader's sampler, or from a stream, as one device would."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, sampler

from nbmgpu.rank.rng.streams import RandomStreams
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0

SAMPLER_MODULES = {sampler.__name__, "accelerate.data_loader"}
"""Modules whose samplers draw from torch's generators only and depend on no other state."""

MAX_EAGER_SAMPLES = 10**6
"""Samples up to which all batches of a pass are drawn at once: a longer pass may be endless."""


def uses_torch_sampler(loader: DataLoader[Any]) -> bool:
    """Return whether the sampler is torch's, so that all batches may be drawn at once."""
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is not BatchSampler:
        return False
    is_sequence = isinstance(batch_sampler.sampler, list | tuple | range)
    return is_sequence or type(batch_sampler.sampler).__module__ in SAMPLER_MODULES


def sample_batches(
    loader: DataLoader[Any], batches: Iterator[Any], streams: RandomStreams
) -> Iterator[Any]:
    """Return an iterator over the index lists of the global batches.

    Args:
        loader: the user's loader.
        batches: an iterator of its batch sampler.
        streams: the random streams of the rank.
    """
    if not uses_torch_sampler(loader):
        # It may depend on the state of the training, or never end: draw one batch at a time.
        return _broadcast_each(draw_each(streams, batches))
    is_short = len(loader.batch_sampler.sampler) <= MAX_EAGER_SAMPLES  # type: ignore[union-attr]
    if loader.num_workers:  # workers receive their first batches immediately
        first = list(itertools.islice(batches, None if is_short else 1))
        return itertools.chain(first, draw_each(streams, batches))
    if not is_short:
        return draw_each(streams, batches)
    return _draw_most(streams, batches, len(loader.batch_sampler) - 1)  # type: ignore[arg-type]


def draw_each(
    streams: RandomStreams, items: Iterator[Any], before: Callable[[], None] | None = None
) -> Iterator[Any]:
    """Yield each item, drawn from the notebook's random stream after ``before()``."""
    while True:
        if before is not None:
            before()
        with streams.notebook_stream():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def _draw_most(streams: RandomStreams, items: Iterator[Any], count: int) -> Iterator[Any]:
    """Draw ``count`` items at the first request, and those after them like ``draw_each``.

    At its end, torch's sampler draws from its generator again: not if the cell breaks before.
    """
    with streams.notebook_stream():
        drawn = list(itertools.islice(items, max(count, 0)))
    yield from drawn
    yield from draw_each(streams, items)


def _broadcast_each(items: Iterator[Any]) -> Iterator[Any]:
    """Yield rank 0's items: a custom sampler may differ between ranks."""
    while (item := broadcast_from_rank_0(next(items, None))) is not None:
        yield item


def repeat_forever(items: Iterator[Any]) -> Iterator[Any]:
    """Yield all items, then the same ones again and again, like ``itertools.cycle``."""
    seen = []
    for item in items:
        seen.append(item)
        yield item
    while seen:
        yield from seen
