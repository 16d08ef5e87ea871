"""Broadcasts, barriers and sums through the store, also with ranks that have finished."""

import pytest

import nbmgpu
from nbmgpu.errors import RankError

COLLECTIVES = """
import os
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0, barrier, sum_over_ranks
rank = int(os.environ["RANK"])
for turn in range(6):
    barrier()
    sums = sum_over_ranks([1.0, rank])
    word = broadcast_from_rank_0(f"turn {turn} of {rank}")
"""

FINISHED_EARLY = """
import os
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0, barrier, sum_over_ranks
if os.environ["RANK"] == "{waiting}":
    {wait}
"""


def test_barrier_sum_and_broadcast():
    namespace = {}
    nbmgpu.run(COLLECTIVES, namespace, gpus=3, cpu=True)
    assert namespace["sums"] == [3.0, 3.0]
    words = {rank: results["word"] for rank, results in nbmgpu.last_run.results.items()}
    assert words == dict.fromkeys(range(3), "turn 5 of 0")


@pytest.mark.parametrize(
    ("waiting", "wait"),
    [(0, "barrier()"), (0, "sum_over_ranks([1.0])"), (1, "broadcast_from_rank_0(1)")],
)
def test_waiting_for_a_rank_that_has_finished_raises(waiting, wait):
    with pytest.raises(RankError, match="Another rank had finished the cell"):
        nbmgpu.run(FINISHED_EARLY.format(waiting=waiting, wait=wait), {}, gpus=2, cpu=True)


def test_waiting_for_a_call_that_rank_0_never_makes_raises():
    wait = 'from nbmgpu.rank.store.broadcast import wait_for_rank_0; wait_for_rank_0("saved")'
    with pytest.raises(RankError, match="Rank 0 had finished the cell"):
        nbmgpu.run(FINISHED_EARLY.format(waiting=1, wait=wait), {}, gpus=2, cpu=True)


LATE = """
import os, time
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0
if os.environ["RANK"] == "1":
    time.sleep(1)
words = [broadcast_from_rank_0(number) for number in range(500)]
"""

AFTER_A_FAILED_PASS = """
import os, time, torch
from nbmgpu.rank.store.broadcast import broadcast_from_rank_0
loss = (torch.ones(1, requires_grad=True) * 2).sum()
loss.backward()
try:
    loss.backward()
except RuntimeError:
    pass  # as out of memory, where the cell goes on with a smaller batch
if os.environ["RANK"] == "0":
    time.sleep(5)
word = broadcast_from_rank_0("there")
"""


def test_a_late_rank_receives_all_broadcasts():
    namespace = {}
    nbmgpu.run(LATE, namespace, gpus=2, cpu=True)
    assert nbmgpu.last_run.results[1]["words"] == list(range(500))


def test_ranks_wait_for_a_slow_rank_0_after_a_failed_backward_pass():
    namespace = {}
    nbmgpu.run(AFTER_A_FAILED_PASS, namespace, gpus=2, cpu=True)
    assert nbmgpu.last_run.results[1]["word"] == "there"
