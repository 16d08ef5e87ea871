"""Which variables hold a part of the last batch, and what of them is sent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from nbmgpu.rank.batch_dependence.step_values import StepValues
from nbmgpu.rank.batch_dependence.tags import Batched
from nbmgpu.rank.data import last_batch
from nbmgpu.rank.data.batch_shard import BatchShard
from nbmgpu.rank.data.last_batch import LastBatch, LastBatches

X, Y = torch.ones(3, 4), torch.zeros(3)
SAMPLES = frozenset(range(3))


def rows(ndim: int, samples: tuple[int, ...] = (0, 1, 2), dim: int = 0, block: int = 1) -> Batched:
    return Batched(dim - ndim, block, samples, SAMPLES)


def batches(
    variables: dict[str, Any], tags: dict[torch.Tensor, Any], shard: BatchShard | None = None
) -> LastBatches:
    """Return the batch ``X``, ``Y`` after a step that has bound ``variables`` of these ``tags``."""
    values = StepValues()
    values.begin_cell(variables)
    values.begin_pass("loader", variables)
    values.observe(tags.get)
    found = LastBatches(values)
    found.add("loader", LastBatch([X, Y], shard or BatchShard(3, 6)))
    return found


def test_names_of_a_batch_and_of_what_was_computed_from_it() -> None:
    out = torch.ones(3, 2)
    variables = {"out": out, "x": X, "pair": [X, Y], "w": torch.ones(3), "n": 3}
    last = batches(variables, {out: rows(2), X: rows(2)})
    assert last.names_in(variables) == {"x": (0,), "out": (0,), "pair": (0, None)}
    assert last.part_of({"x": X, "out": out}) == {"x": X, "out": out}


def test_containers_have_a_dimension_for_each_tensor() -> None:
    out, state = torch.ones(5, 3, 2), torch.ones(12, 2)
    variables = {"made": {"out": out, "more": (state, 7, None)}}
    last = batches(variables, {out: rows(3, dim=1), state: rows(2, block=4)})
    assert last.names_in(variables) == {"made": (1, 0, None, None)}


@pytest.mark.parametrize(
    "tag", [rows(2, (2, 1, 0)), rows(2, (0, 1)), rows(2, block=2), rows(2, dim=1), None]
)
def test_rows_that_are_not_all_samples_in_order_are_none(tag: Batched | None) -> None:
    out = torch.ones(3, 2)
    assert batches({"out": out}, {out: tag}).names_in({"out": out}) == {}


@pytest.mark.parametrize("now", [torch.ones(5, 2), torch.ones(()), "text"])
def test_what_has_another_form_now_is_none(now: Any) -> None:
    out = torch.ones(3, 2)
    last = batches({"out": out}, {out: rows(2)})
    assert last.names_in({"out": torch.zeros(3, 2)}) == {"out": (0,)}, "of a later step"
    assert last.names_in({"out": now}) == {}


def test_what_was_written_to_since_is_none() -> None:
    out = torch.ones(3, 2)
    last = batches({"out": out}, {out: rows(2)})
    out.mul_(2)
    assert last.names_in({"out": out}) == {}


def test_on_whole_batches_there_are_none() -> None:
    out = torch.ones(3, 2)
    last = batches({"out": out}, {out: rows(2)}, BatchShard(3, 3))
    assert last.names_in({"x": X, "out": out}) == {}


def test_what_was_computed_leaves_room_for_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = torch.ones(3, 100), torch.ones(3)
    variables = {"large": large, "small": small, "x": X, "y": Y}
    last = batches(variables, {large: rows(2), small: rows(1)})
    monkeypatch.setattr(last_batch, "LARGEST", 100)
    assert last.part_of(variables) == {"x": X, "y": Y, "small": small}
    monkeypatch.setattr(last_batch, "LARGEST", 50)
    assert last.part_of(variables) is None


def test_a_shared_batch_has_its_samples_along_the_dimension_that_was_given() -> None:
    found = LastBatches(StepValues())
    found.add("share", LastBatch((X, Y[None]), BatchShard(4, 8), dim=1))
    assert found.names_in({"x": X, "both": [X]}) == {"x": (1,)}
    assert found.part_of({"x": X}) == {"x": X}
