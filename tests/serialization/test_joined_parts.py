"""The parts of a batch that ranks hold come back joined."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from nbmgpu.serialization.joined_parts import join, join_names

Pair = namedtuple("Pair", "x y")


def rows(start: int, stop: int) -> torch.Tensor:
    return torch.arange(start, stop)[:, None] * torch.ones(3)


def test_tensors_and_arrays_are_joined_along_samples() -> None:
    assert torch.equal(join([rows(0, 2), rows(2, 5)]), rows(0, 5))
    joined = join([np.arange(2), np.arange(2, 3)])
    assert joined.tolist() == [0, 1, 2]


def test_containers_are_joined_item_by_item() -> None:
    parts = [
        {"x": rows(0, 2), "names": ["a", "b"], "size": 7, "pair": Pair(rows(0, 2), (1, 2))},
        {"x": rows(2, 3), "names": ["c"], "size": 7, "pair": Pair(rows(2, 3), (3,))},
    ]
    joined = join(parts)
    assert torch.equal(joined["x"], rows(0, 3))
    assert (joined["names"], joined["size"]) == (["a", "b", "c"], 7)
    assert type(joined["pair"]) is Pair
    assert torch.equal(joined["pair"].x, rows(0, 3))
    assert joined["pair"].y == (1, 2, 3)


def test_a_list_of_columns_stays_a_list() -> None:
    x, y = join([[rows(0, 1), torch.tensor([4])], [rows(1, 2), torch.tensor([5])]])
    assert torch.equal(x, rows(0, 2))
    assert y.tolist() == [4, 5]


@pytest.mark.parametrize(
    "parts",
    [
        [rows(0, 2), [1, 2]],
        [torch.ones(2, 3), torch.ones(2, 4)],
        [[rows(0, 1)], [rows(0, 1), rows(0, 1)]],
        [object(), object()],
        [{"tokens": 3}, {"tokens": 4}],
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: list[Any]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        join(parts)


def test_names_are_joined_in_the_order_of_parts() -> None:
    own = {"x": rows(0, 1), "y": 1}
    parts: dict[int, Any] = {2: {"x": rows(2, 3)}, 1: {"x": rows(1, 2)}}
    assert torch.equal(join_names({"x": None}, own, parts)["x"], rows(0, 3))


def test_without_all_parts_nothing_is_joined() -> None:
    assert join_names({"x": None}, {"x": rows(0, 2)}, {1: {"x": rows(2, 3)}, 2: None}) == {}
    assert join_names({"x": None}, {"x": rows(0, 2)}, {1: {"z": rows(2, 3)}}) == {}
