"""How batches are cut."""

import collections
import itertools

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from nbmgpu.rank.data.batch_shard import Share
from nbmgpu.rank.data.batch_split import (
    as_collated,
    cut,
    cut_rows,
    least_of_rest,
    pick_batch,
    rows,
    sizes,
)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("whole", [1, 2, 3, 7, 8, 9, 64])
@pytest.mark.parametrize("least", [1, 2])
def test_slices_cover_the_batch_once(whole, world_size, least):
    parts = [cut(whole, rank, world_size, least) for rank in range(world_size)]
    covered = [i for part, share in parts if not share.empty for i in range(*part.indices(whole))]
    assert covered == list(range(whole))
    assert sum(share.weight for _, share in parts) == pytest.approx(1)
    sizes = [share.samples for _, share in parts if not share.empty]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(least, whole)


def test_nobody_is_without_work_when_a_batch_is_tiny():
    part, share = cut(1, 1, 2)
    assert (part, share.empty, share.weight) == (slice(0, 1), True, 0.0)


@pytest.mark.parametrize(
    ("samples", "size", "ranks", "least"),
    [(3, 8, 2, 2), (8, 8, 2, 1), (7, 8, 8, 1), (3, 4, 2, 1), (2, 2, 2, 1), (1, 8, 8, 2),
     (4, 8, 2, 1), (5, None, 2, 1), (3, 64, 4, 2)],
)  # fmt: skip
def test_what_is_left_over_is_not_dealt_out_one_by_one(samples, size, ranks, least):
    assert least_of_rest(samples, size, ranks) == least


def test_a_batch_per_rank():
    group = [[0, 1], [2, 3], [4]]
    assert pick_batch(group, 2)[0] == [4]
    assert pick_batch(group, 2)[1].weight == pytest.approx(1 / 5)
    indices, share = pick_batch([[0, 1]], 1)
    assert indices == [0, 1]
    assert share.empty


Pair = collections.namedtuple("Pair", "x y")
X = torch.arange(12).reshape(6, 2)
CUTTABLE = {
    "tuple": (X, torch.arange(6)),
    "dict": {"x": X, "words": list("abcdef"), "temperature": torch.tensor(1.0)},
    "namedtuple": Pair(X, np.arange(6)),
    "nested": [{"a": X}, (X, None, "same for all")],
}
WHOLE = {
    "different lengths": (X, torch.arange(5)),
    "an object": (X, object()),
    "nothing to cut": {"a": 1},
}


@pytest.mark.parametrize("batch", CUTTABLE.values(), ids=CUTTABLE.keys())
def test_rows_of_a_batch(batch):
    assert rows(batch) == 6
    half = cut_rows(batch, slice(0, 3))
    assert rows(half) == 3
    assert type(half) is type(batch)


@pytest.mark.parametrize("batch", WHOLE.values(), ids=WHOLE.keys())
def test_what_cannot_be_cut_stays_whole(batch):
    assert rows(batch) is None


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
def test_sizes_of_batches_are_known_before_they_are_loaded(options, known):
    loader = DataLoader(torch.arange(10.0), **options)
    assert list(itertools.islice(sizes(loader), len(known))) == known


def test_what_a_batch_lacks_is_told_from_samples_in_another_dimension():
    share = Share(4, 8)

    def collated(batch):
        return as_collated(share, batch, rows(batch))

    assert collated((torch.ones(4, 3), torch.ones(4))) == share
    assert collated((torch.ones(3, 3), torch.ones(3))) == Share(3, 8)
    assert collated((torch.ones(3, 4), torch.ones(3))) == Share(3, 8)
    assert collated((torch.ones(3, 4), torch.ones(3, 4, 2))) == share
    assert collated({"ids": torch.ones(7, 4)}) == share


def test_a_stream_and_a_sampler_without_end_say_nothing_of_their_size():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    assert next(sizes(DataLoader(Stream(), batch_size=2))) is None
    endless = DataLoader(torch.arange(10.0), batch_size=2, sampler=itertools.count())
    assert next(sizes(endless)) is None
