"""Collectives through shared memory have the results of the process group, in every order."""

import pytest

import nbmgpu
from nbmgpu.errors import RankError

AGAINST_THE_GROUP = """
import torch, torch.distributed as dist
from nbmgpu.system.shared_memory import SLOT_BYTES
from nbmgpu.strategies import collectives
wrong, rank = [], dist.get_rank()
for count in (1, 7, SLOT_BYTES // 4, SLOT_BYTES // 4 + 1, 3 * SLOT_BYTES // 4 - 5):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        generator = torch.Generator().manual_seed(rank)
        mine = torch.randint(0, 50, (count,), generator=generator).to(dtype)
        groups = mine.clone()
        collectives.all_reduce(mine).wait()
        dist.all_reduce(groups)
        if not torch.equal(mine, groups):
            wrong.append((count, dtype))
through_memory = collectives.shared is not None
"""

PARTS_AGAINST_THE_GROUP = """
import torch, torch.distributed as dist
from nbmgpu.system.shared_memory import SLOT_BYTES
from nbmgpu.strategies import collectives
wrong, rank, ranks = [], dist.get_rank(), dist.get_world_size()
for count in (0, 1, 7, SLOT_BYTES // 4 + 1, 3 * SLOT_BYTES // 4 - 5):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        generator = torch.Generator().manual_seed(rank)
        full = torch.randint(0, 50, (ranks * count,), generator=generator).to(dtype)
        reduced, gathered = full.clone(), torch.empty_like(full)
        dist.all_reduce(reduced)
        wanted = reduced.chunk(ranks)[rank] if count else reduced
        own = torch.empty(count, dtype=dtype)
        collectives.reduce_scatter(own, full)
        collectives.all_gather(gathered, own)
        in_place = torch.empty_like(full)
        place = in_place.narrow(0, rank * count, count).copy_(own)
        collectives.all_gather(in_place, place)
        if not (torch.equal(own, wanted) and torch.equal(gathered, reduced)):
            wrong.append((count, dtype))
        if not torch.equal(in_place, reduced):
            wrong.append((count, dtype, "in place"))
through_memory = collectives.shared is not None
"""

IN_DISORDER = """
import random, time, torch, torch.distributed as dist
from nbmgpu.strategies import collectives
rank, ranks, wrong = dist.get_rank(), dist.get_world_size(), 0
sizes, pauses = random.Random(0), random.Random(rank + 1)
for turn in range(1500):
    size = sizes.choice([1, 50, 3000, 400_000 if turn % 50 == 0 else 2])
    mine = torch.full((size,), rank + turn * 1.0)
    gathered, part = torch.empty(ranks * size), torch.empty(size)
    if pauses.random() < 0.05:
        time.sleep(pauses.random() / 500)
    collectives.all_gather(gathered, mine)
    collectives.reduce_scatter(part, gathered)
    collectives.all_reduce(mine).wait()
    wrong += int((mine != ranks * turn + ranks * (ranks - 1) / 2).sum())
    wrong += int((part != ranks * (turn + rank)).sum())
"""

OF_ANOTHER_SIZE = """
import torch, torch.distributed as dist
from nbmgpu.strategies import collectives
collectives.all_reduce(torch.ones(4 + dist.get_rank())).wait()
"""

OTHER_COLLECTIVES = """
import torch, torch.distributed as dist
from nbmgpu.strategies import collectives
if dist.get_rank() == 0:
    collectives.all_reduce(torch.ones(4)).wait()
else:
    collectives.all_gather(torch.ones(8), torch.ones(4))
"""

IN_A_CHILD = """
import os, torch
from nbmgpu.errors import RankError
from nbmgpu.strategies import collectives
pid = os.fork()
if pid == 0:
    try:
        collectives.all_reduce(torch.ones(1)).wait()
    except RankError:
        os._exit(7)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""

INTERRUPTED = """
import signal, time, torch, torch.distributed as dist
from nbmgpu.strategies import collectives

def interrupt(*_):
    raise TimeoutError

if dist.get_rank() == 0:
    time.sleep(1)
else:
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
for turn in range(2):
    try:
        collectives.all_reduce(torch.ones(1)).wait()
    except TimeoutError:
        pass
"""

WITHOUT_A_GROUP = """
import torch, torch.distributed as dist
from nbmgpu.strategies import collectives
if dist.get_rank() == 0:
    collectives.all_reduce(torch.ones(4)).wait()
else:
    dist.destroy_process_group()
"""

ALONE = """
import torch, torch.distributed as dist
from nbmgpu.strategies import collectives
if dist.get_rank() == 0:
    collectives.all_reduce(torch.ones(4)).wait()
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_equal_those_of_the_process_group(ranks: int) -> None:
    namespace = {}
    nbmgpu.run(AGAINST_THE_GROUP, namespace, gpus=ranks, cpu=True)
    assert namespace["through_memory"]
    assert namespace["wrong"] == []


@pytest.mark.parametrize("ranks", [2, 3])
def test_parts_equal_those_of_the_process_group(ranks: int) -> None:
    namespace = {}
    nbmgpu.run(PARTS_AGAINST_THE_GROUP, namespace, gpus=ranks, cpu=True)
    assert namespace["through_memory"]
    assert namespace["wrong"] == []


@pytest.mark.parametrize("ranks", [2, 3])  # with three, none spins: there are fewer cores
def test_no_rank_overtakes_another(ranks: int) -> None:
    namespace = {}
    nbmgpu.run(IN_DISORDER, namespace, gpus=ranks, cpu=True)
    assert [held["wrong"] for held in nbmgpu.last_run.results.values()] == [0] * ranks


@pytest.mark.parametrize("cell", [AGAINST_THE_GROUP, PARTS_AGAINST_THE_GROUP], ids=["sum", "parts"])
def test_under_torchrun_the_process_group_communicates(cell: str) -> None:
    namespace = {}
    nbmgpu.run(cell, namespace, gpus=2, cpu=True, fresh=True)
    assert not namespace["through_memory"]
    assert namespace["wrong"] == []


def test_ranks_that_reduce_different_tensors_get_an_error() -> None:
    with pytest.raises(RankError, match="reduce tensors of different sizes"):
        nbmgpu.run(OF_ANOTHER_SIZE, {}, gpus=2, cpu=True)


def test_ranks_that_call_different_collectives_get_an_error() -> None:
    with pytest.raises(RankError, match=r"calls all_(gather|reduce) where rank \d calls all_"):
        nbmgpu.run(OTHER_COLLECTIVES, {}, gpus=2, cpu=True)


def test_a_child_process_of_a_rank_cannot_reduce() -> None:
    namespace = {}
    nbmgpu.run(IN_A_CHILD, namespace, gpus=2, cpu=True)
    assert namespace["code"] == 7


def test_a_rank_interrupted_in_a_reduction_cannot_continue() -> None:
    with pytest.raises(RankError, match="Rank 1 was interrupted while it reduced gradients"):
        nbmgpu.run(INTERRUPTED, {}, gpus=2, cpu=True)


@pytest.mark.parametrize("cell", [ALONE, WITHOUT_A_GROUP], ids=["a group", "no group any more"])
def test_a_rank_that_waits_for_a_finished_one_gets_an_error(cell: str) -> None:
    with pytest.raises(RankError, match="Rank 1 had finished the cell"):
        nbmgpu.run(cell, {}, gpus=2, cpu=True)
