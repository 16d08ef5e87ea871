"""Which values ranks hold alike."""

from collections import deque

import numpy as np
import pytest
import torch

from nbmgpu.kernel.rank_agreement import differing_names

ALIKE = {
    "rounding": (1.0, 1.0 + 1e-7),
    "nan": (float("nan"), float("nan")),
    "tensors": (torch.ones(3), torch.ones(3) + 1e-7),
    "sparse": (torch.eye(3).to_sparse(), torch.eye(3).to_sparse()),
    "without data": (torch.ones(3, device="meta"), torch.ones(3, device="meta")),
    "complex": (torch.ones(2) * 1j, torch.ones(2) * 1j),
    "queues": (deque([1.0, 2.0]), deque([1.0, 2.0])),
    "different kinds": (1, "1"),
    "sets of what has no value": ({torch.ones(1)}, {torch.ones(1)}),
}
NOT_ALIKE = {
    "numbers": (1.0, 1.1),
    "counts": (np.int64(3), np.int64(4)),
    "means": (np.float32(0.5), np.float32(0.6)),
    "tensors": (torch.ones(3), torch.zeros(3)),
    "shapes": (torch.ones(3), torch.ones(2)),
    "sparse": (torch.eye(3).to_sparse(), torch.ones(3, 3).to_sparse()),
    "arrays": (np.arange(3), np.arange(3) + 1),
    "queues": (deque([1.0]), deque([2.0])),
    "sets": ({1, 2}, {1, 3}),
    "complex numbers": (1 + 1j, 1 + 2j),
    "histories": ({"loss": [1.0, 2.0]}, {"loss": [1.0, 2.5]}),
}


@pytest.mark.parametrize(("own", "other"), ALIKE.values(), ids=ALIKE)
def test_values_that_are_alike(own, other):
    assert differing_names({"x": own}, [{"x": other}]) == []


@pytest.mark.parametrize(("own", "other"), NOT_ALIKE.values(), ids=NOT_ALIKE)
def test_values_that_are_not(own, other):
    assert differing_names({"same": 1, "x": own}, [{"same": 1, "x": own}, {"x": other}]) == ["x"]


def test_what_only_one_rank_holds_is_passed_over():
    assert differing_names({"mine": 1}, [{"its": 2}]) == []
