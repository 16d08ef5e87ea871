"""Which variables hold a part of the last batch, and what of them is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nbmgpu.rank.data import last_batch
from nbmgpu.rank.data.batch_shard import BatchShard
from nbmgpu.rank.data.last_batch import LastBatches

X, Y = torch.ones(3, 4), torch.zeros(3)


def batches(*shards: tuple[Any, BatchShard]) -> LastBatches:
    found = LastBatches()
    for number, (batch, shard) in enumerate(shards):
        found.add(number, batch, shard)
    return found


def test_names_of_a_batch_and_of_what_was_computed_from_it() -> None:
    last = batches(([X, Y], BatchShard(3, 6)))
    variables = {"out": torch.ones(3, 2), "x": X, "pair": [X, Y], "w": torch.ones(3), "n": 3}
    assert last.names_in(variables, {"out", "x", "n"}) == ["x", "out"]
    assert last.part_of(variables, {"out", "x"}) == {"x": X, "out": variables["out"]}


@pytest.mark.parametrize("out", [torch.ones(5, 2), torch.ones(()), "text"])
def test_what_has_other_rows_now_is_none(out: Any) -> None:
    assert batches(([X, Y], BatchShard(3, 6))).names_in({"out": out}, {"out"}) == []


def test_on_whole_batches_there_are_none() -> None:
    last = batches(([X, Y], BatchShard(3, 3)))
    assert last.names_in({"x": X, "out": torch.ones(3)}, {"out"}) == []


def test_what_was_computed_leaves_room_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    last = batches(([X, Y], BatchShard(3, 6)))
    variables = {"large": torch.ones(3, 100), "small": torch.ones(3), "x": X, "y": Y}
    computed = {"large", "small", "x", "y"}
    monkeypatch.setattr(last_batch, "LARGEST", 100)
    assert last.part_of(variables, computed) == {"x": X, "y": Y, "small": variables["small"]}
    monkeypatch.setattr(last_batch, "LARGEST", 50)
    assert last.part_of(variables, computed) is None
