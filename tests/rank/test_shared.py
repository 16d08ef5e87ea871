"""What ranks tell one another beside their process group, and what of one that has left."""

import pytest

import nbmgpu
from nbmgpu.errors import RankError

TOLD = """
import os
from nbmgpu.rank.shared import from_rank_0, meet, sum_over_ranks
rank = int(os.environ["RANK"])
for turn in range(6):
    meet()
    sums = sum_over_ranks([1.0, rank])
    word = from_rank_0(f"turn {turn} of {rank}")
"""

LEFT = """
import os
from nbmgpu.rank.shared import from_rank_0, meet, sum_over_ranks
if os.environ["RANK"] == "{waiting}":
    {wait}
"""


def test_ranks_meet_add_up_and_hear_rank_0():
    namespace = {}
    nbmgpu.run(TOLD, namespace, gpus=3, cpu=True)
    assert namespace["sums"] == [3.0, 3.0]
    told = {rank: results["word"] for rank, results in nbmgpu.last_run.results.items()}
    assert told == dict.fromkeys(range(3), "turn 5 of 0")


@pytest.mark.parametrize(
    ("waiting", "wait"), [(0, "meet()"), (0, "sum_over_ranks([1.0])"), (1, "from_rank_0(1)")]
)
def test_who_waits_for_a_rank_that_has_left_is_told_so(waiting, wait):
    with pytest.raises(RankError, match="Another rank had come to the end of the cell"):
        nbmgpu.run(LEFT.format(waiting=waiting, wait=wait), {}, gpus=2, cpu=True)
