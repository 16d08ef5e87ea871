"""Every strategy leaves the weights of one device, for every kind of model."""

from __future__ import annotations

import itertools

import pytest
from idioms.architectures import CELLS, STRATEGIES
from idioms.comparison import assert_equal
from idioms.idiom import Idiom
from matrix_selection import sampled


@pytest.mark.parametrize(
    ("cell", "strategy"),
    sampled(itertools.product(CELLS, STRATEGIES), 47, "nbmgpu/strategies", "nbmgpu/rank/training"),
)
def test_a_model_trains_as_on_one_device(strategy: str, cell: Idiom) -> None:
    result = assert_equal(cell, strategy=strategy)
    assert result.split() == (strategy not in ("mp", "dp"))
