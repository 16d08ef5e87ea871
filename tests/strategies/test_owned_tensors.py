"""Ranks gather tensors that each of them has changed some of."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


LATE_BACKWARD = """
for x, y in loader:
    late = (second(x) ** 2).mean()  # saves weights that the next step does not change
    opt.zero_grad()
    first(x).pow(2).mean().backward()
    opt.step()
    opt.zero_grad()
    late.backward()
    opt.step()
"""


def test_a_graph_outlives_a_step_that_does_not_change_its_weights() -> None:
    def made() -> dict[str, object]:
        torch.manual_seed(0)
        layers = [nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))]
        parameters = [p for layer in layers for p in layer.parameters()]
        data = TensorDataset(torch.randn(32, 8), torch.zeros(32))
        opt = torch.optim.SGD(parameters, lr=0.1)
        loader = DataLoader(data, batch_size=8)
        return {"first": layers[0], "second": layers[1], "opt": opt, "loader": loader}

    alone, ranks = made(), made()
    exec(LATE_BACKWARD, alone)
    nbmgpu.run(LATE_BACKWARD, ranks, gpus=2, cpu=True, strategy="zero1", exact="never")
    for one, other in zip(
        alone["opt"].param_groups[0]["params"], ranks["opt"].param_groups[0]["params"], strict=True
    ):
        assert torch.allclose(one, other, atol=1e-6)
