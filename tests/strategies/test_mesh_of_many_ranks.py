"""The device mesh of more ranks than this machine has, in torch's fake process group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from nbmgpu.strategies.mesh import RankMesh

PER_NODE = 8
WORLD = 2 * PER_NODE

SHAPES = {
    "dp over nodes, tp within": {"dp": 2, "tp": 8},
    "fsdp over nodes, tp within": {"fsdp": 2, "tp": 8},
    "hsdp": {"dp": 2, "fsdp": 8},
    "three dimensions": {"fsdp": 4, "pp": 2, "tp": 2},
    "sp within": {"dp": 4, "sp": 4},
    "no data-parallel dimension": {"pp": 2, "tp": 8},
}
WITHIN_A_NODE = {"tp", "sp", "cp"}


@contextmanager
def rank_of_many(rank: int) -> Iterator[None]:
    """Let this process be ``rank``; collectives return at once, and communicate nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def members(mesh: RankMesh, name: str) -> list[int]:
    return dist.get_process_group_ranks(mesh.device_mesh.get_group(name))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_ranks_of_a_node_are_next_to_each_other_in_the_inner_dimensions(
    shape: dict[str, int],
) -> None:
    shards: dict[int, set[int]] = {}
    for rank in range(WORLD):
        with rank_of_many(rank):
            mesh = RankMesh(shape, rank, WORLD, "cpu")
            for name, size in mesh.shape.items():
                group = members(mesh, name)
                assert rank in group
                assert len(group) == size
                if name in WITHIN_A_NODE:
                    assert {each // PER_NODE for each in group} == {rank // PER_NODE}
            data_parallel = dist.get_process_group_ranks(mesh.dp_group)
            assert len(data_parallel) == mesh.dp_size
            assert data_parallel.index(rank) == mesh.dp_rank
            shards.setdefault(mesh.dp_rank, set()).add(rank)
    # Each shard of a batch is on the same number of ranks, and they are all of them.
    assert {len(ranks) for ranks in shards.values()} == {WORLD // len(shards)}


@pytest.mark.parametrize("names", [("dp",), ("dp", "tp"), ("pp",)])
@pytest.mark.parametrize("rank", [0, 5, 15])
def test_new_groups_are_of_the_ranks_that_differ_in_these_dimensions(
    rank: int, names: tuple[str, ...]
) -> None:
    shape = {"dp": 2, "pp": 4, "tp": 2}
    with rank_of_many(rank):
        mesh = RankMesh(shape, rank, WORLD, "cpu")
        group = dist.get_process_group_ranks(mesh.new_group(names))
    places = [dict(zip(shape, divided(each), strict=True)) for each in group]
    own = dict(zip(shape, divided(rank), strict=True))
    kept = shape.keys() - set(names)
    assert all({n: place[n] for n in kept} == {n: own[n] for n in kept} for place in places)
    assert len(group) == math.prod(shape[name] for name in names)


def divided(rank: int) -> tuple[int, int, int]:
    """Return the position of a rank in a mesh of 2 x 4 x 2."""
    return rank // 8, rank // 2 % 4, rank % 2
