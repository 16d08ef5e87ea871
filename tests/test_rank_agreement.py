"""Comparison of the values that ranks hold under the same names."""

from collections import deque

import numpy as np
import pytest
import torch

from nbmgpu.kernel.rank_agreement import differing_names

EQUAL = {
    "rounding": (1.0, 1.0 + 1e-7),
    "nan": (float("nan"), float("nan")),
    "tensors": (torch.ones(3), torch.ones(3) + 1e-7),
    "sparse": (torch.eye(3).to_sparse(), torch.eye(3).to_sparse()),
    "without data": (torch.ones(3, device="meta"), torch.ones(3, device="meta")),
    "complex": (torch.ones(2) * 1j, torch.ones(2) * 1j),
    "deque": (deque([1.0, 2.0]), deque([1.0, 2.0])),
    "different types": (1, "1"),
    "sets of tensors": ({torch.ones(1)}, {torch.ones(1)}),
}
DIFFERENT = {
    "numbers": (1.0, 1.1),
    "numpy integers": (np.int64(3), np.int64(4)),
    "numpy floats": (np.float32(0.5), np.float32(0.6)),
    "tensors": (torch.ones(3), torch.zeros(3)),
    "shapes": (torch.ones(3), torch.ones(2)),
    "sparse": (torch.eye(3).to_sparse(), torch.ones(3, 3).to_sparse()),
    "arrays": (np.arange(3), np.arange(3) + 1),
    "deque": (deque([1.0]), deque([2.0])),
    "sets": ({1, 2}, {1, 3}),
    "complex numbers": (1 + 1j, 1 + 2j),
    "nested lists": ({"loss": [1.0, 2.0]}, {"loss": [1.0, 2.5]}),
}


@pytest.mark.parametrize(("own", "other"), EQUAL.values(), ids=EQUAL)
def test_equal_values(own, other):
    assert differing_names({"x": own}, [{"x": other}]) == []


@pytest.mark.parametrize(("own", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_values(own, other):
    assert differing_names({"same": 1, "x": own}, [{"same": 1, "x": own}, {"x": other}]) == ["x"]


def test_times_in_dicts_are_each_ranks_own():
    own = {"eval_runtime": 1.0, "eval_steps_per_second": 2.0, "time": 3.0, "eval_loss": 4.0}
    other = dict.fromkeys(own, 9.0) | {"eval_loss": 4.0}
    assert differing_names({"history": [own]}, [{"history": [other]}]) == []
    assert differing_names({"a": own}, [{"a": other | {"eval_loss": 5.0}}]) == ["a"]


def test_names_of_only_one_rank_are_ignored():
    assert differing_names({"mine": 1}, [{"its": 2}]) == []
