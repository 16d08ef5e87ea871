"""How batches are split."""

import collections
import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from nbmgpu.rank.data.batch_shard import BatchShard
from nbmgpu.rank.data.batch_split import (
    adjust_to_collated,
    batch_sizes,
    count_rows,
    min_samples_of_remainder,
    select_batch,
    slice_rows,
    split_batch,
)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("samples", [1, 2, 3, 7, 8, 9, 64])
@pytest.mark.parametrize("least", [1, 2])
def test_slices_cover_the_batch_once(samples, world_size, least):
    parts = [split_batch(samples, rank, world_size, least) for rank in range(world_size)]
    covered = [
        i for part, shard in parts if not shard.is_padding for i in range(*part.indices(samples))
    ]
    assert covered == list(range(samples))
    assert sum(shard.weight for _, shard in parts) == pytest.approx(1)
    sizes = [shard.samples for _, shard in parts if not shard.is_padding]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(least, samples)


def test_a_tiny_batch_is_padding_on_other_ranks():
    part, shard = split_batch(1, 1, 2)
    assert (part, shard.is_padding, shard.weight) == (slice(0, 1), True, 0.0)


@pytest.mark.parametrize(
    ("samples", "batch_size", "ranks", "least"),
    [(3, 8, 2, 2), (8, 8, 2, 1), (7, 8, 8, 1), (3, 4, 2, 1), (2, 2, 2, 1), (1, 8, 8, 2),
     (4, 8, 2, 1), (5, None, 2, 1), (3, 64, 4, 2)],
)  # fmt: skip
def test_an_incomplete_last_batch_is_not_split_into_single_samples(
    samples, batch_size, ranks, least
):
    assert min_samples_of_remainder(samples, batch_size, ranks) == least


def test_a_batch_per_rank():
    group = [[0, 1], [2, 3], [4]]
    assert select_batch(group, 2)[0] == [4]
    assert select_batch(group, 2)[1].weight == pytest.approx(1 / 5)
    indices, shard = select_batch([[0, 1]], 1)
    assert indices == [0, 1]
    assert shard.is_padding


Pair = collections.namedtuple("Pair", "x y")
X = torch.arange(12).reshape(6, 2)
SPLITTABLE = {
    "tuple": (X, torch.arange(6)),
    "dict": {"x": X, "words": list("abcdef"), "temperature": torch.tensor(1.0)},
    "namedtuple": Pair(X, np.arange(6)),
    "nested": [{"a": X}, (X, None, "same for all")],
}
NOT_SPLITTABLE = {
    "different lengths": (X, torch.arange(5)),
    "an object": (X, object()),
    "no rows": {"a": 1},
}


@pytest.mark.parametrize("batch", SPLITTABLE.values(), ids=SPLITTABLE.keys())
def test_rows_of_a_batch(batch):
    assert count_rows(batch) == 6
    half = slice_rows(batch, slice(0, 3))
    assert count_rows(half) == 3
    assert type(half) is type(batch)


@pytest.mark.parametrize("batch", NOT_SPLITTABLE.values(), ids=NOT_SPLITTABLE.keys())
def test_batches_without_common_rows_are_not_split(batch):
    assert count_rows(batch) is None


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({"batch_size": 4}, [4, 4, 2, None]),
        ({"batch_size": 4, "drop_last": True}, [4, 4]),
        ({"batch_size": 4, "sampler": range(5)}, [4, 1, None]),
        ({"batch_sampler": [[0, 1], [2]]}, [None, None]),
        ({"batch_size": None}, [None]),
    ],
)
def test_batch_sizes_are_known_before_loading(options, known):
    loader = DataLoader(torch.arange(10.0), **options)
    assert list(itertools.islice(batch_sizes(loader), len(known))) == known


def test_dropped_samples_are_distinguished_from_samples_in_another_dimension():
    shard = BatchShard(4, 8)

    def collated(batch):
        return adjust_to_collated(shard, batch, count_rows(batch))

    assert collated((torch.ones(4, 3), torch.ones(4))) == shard
    assert collated((torch.ones(3, 3), torch.ones(3))) == BatchShard(3, 8)
    assert collated((torch.ones(3, 4), torch.ones(3))) == BatchShard(3, 8)
    assert collated((torch.ones(3, 4), torch.ones(3, 4, 2))) == shard
    assert collated({"ids": torch.ones(7, 4)}) == shard


def test_batch_sizes_of_streams_and_endless_samplers_are_unknown():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    assert next(batch_sizes(DataLoader(Stream(), batch_size=2))) is None
    endless = DataLoader(torch.arange(10.0), batch_size=2, sampler=itertools.count())
    assert next(batch_sizes(endless)) is None
