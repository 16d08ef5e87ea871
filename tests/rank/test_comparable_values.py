"""Summaries of large values tell whether they differ, in little time and memory."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.preprocessing import StandardScaler

from nbmgpu.rank.comparable_values import SAMPLED, summary_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(4 * SAMPLED), 2 * torch.ones(4 * SAMPLED)),
        (torch.ones(4), torch.ones(5)),
        (torch.ones(4), torch.ones(4, dtype=torch.int64)),
        ({"a": torch.ones(4), "n": 1}, {"a": torch.ones(4), "n": 2}),
        ([torch.zeros(4)], [torch.ones(4)]),
        (SimpleNamespace(last=torch.ones(4)), SimpleNamespace(last=torch.ones(5))),
        (StandardScaler().fit([[1.0]]), StandardScaler().fit([[2.0]])),
    ],
)
def test_different_values_have_different_summaries(one: Any, other: Any) -> None:
    assert summary_of(one) != summary_of(other)
    assert summary_of(one) == summary_of(one) is not None


@pytest.mark.parametrize(
    "value", [torch.ones(0), torch.ones(3) * torch.nan, torch.ones(3, dtype=torch.bfloat16), {}, ()]
)
def test_every_tensor_has_a_summary(value: Any) -> None:
    assert summary_of(value) == summary_of(value) is not None


@pytest.mark.parametrize("value", [object(), torch.nn.Linear(2, 2), pytest])
def test_objects_have_none(value: Any) -> None:
    assert summary_of(value) is None


def test_nested_and_large_containers_have_none() -> None:
    endless: list[Any] = []
    endless.append(endless)
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"next": deep}
    begun = time.monotonic()
    for value in (endless, deep, [[1] * 500 for _ in range(10_000)]):
        assert summary_of(value) is None
    assert time.monotonic() - begun < 5
