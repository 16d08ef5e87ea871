"""Ranks gather tensors that each of them has changed some of."""

from __future__ import annotations

import pytest
import torch

import nbmgpu
from nbmgpu.strategies.buckets import BUCKET_BYTES
from nbmgpu.strategies.owned_tensors import owned_buckets

GATHER = """
import torch, torch.distributed as dist
from nbmgpu.strategies.owned_tensors import owned_buckets
rank, ranks = dist.get_rank(), dist.get_world_size()
shapes = (3,), (2, 3, 4, 4), (), (0, 3), (5, 7), (1,)
dtypes = torch.float32, torch.bfloat16, torch.int64

def make(owner, fill):
    generator = torch.Generator().manual_seed(owner)
    made = []
    for shape in shapes[owner:] if owner else shapes:
        for dtype in dtypes:
            tensor = torch.randint(1, 50, shape, generator=generator).to(dtype)
            layout = torch.channels_last if len(shape) == 4 else torch.preserve_format
            made.append((tensor if fill else torch.zeros_like(tensor)).to(memory_format=layout))
    return made if owner < 2 else []  # a third rank has none

held = [make(owner, owner == rank) for owner in range(ranks)]
strides = [[t.stride() for t in owned] for owned in held]
buckets = owned_buckets(held)
for bucket in buckets:
    bucket.gather(rank, None)
wrong = sum(
    not torch.equal(t, wanted)
    for owner in range(ranks) for t, wanted in zip(held[owner], make(owner, True), strict=True))
wrong += strides != [[t.stride() for t in owned] for owned in held]
count = len(buckets)
"""


@pytest.mark.parametrize(("ranks", "fresh"), [(2, False), (3, False), (2, True)])
def test_all_ranks_have_the_tensors_of_their_owners(ranks: int, fresh: bool) -> None:
    nbmgpu.run(GATHER, {}, gpus=ranks, cpu=True, fresh=fresh)
    results = nbmgpu.last_run.results.values()
    assert [(held["wrong"], held["count"]) for held in results] == [(0, 3)] * ranks


def test_a_bucket_has_tensors_of_one_kind_up_to_its_size() -> None:
    large = torch.empty(BUCKET_BYTES // 4 + 1)
    small, half = torch.empty(8), torch.empty(8, dtype=torch.bfloat16)
    found = owned_buckets([[small, large, half, small], [half]])
    expected = [([small], []), ([large], []), ([small], []), ([half], [half])]
    assert [bucket.tensors for bucket in found] == expected
