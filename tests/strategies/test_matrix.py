"""Every strategy leaves the weights of one device, for every kind of model."""

from __future__ import annotations

import itertools

import pytest
from idiom import Idiom, compare
from matrix import CELLS, STRATEGIES
from matrix_selection import sampled

from nbmgpu.errors import StrategyError

REFUSED: dict[tuple[str, str], str] = {}
"""Cells that a strategy refuses, by strategy and the name's part, with what it says."""


@pytest.mark.parametrize(
    ("cell", "strategy"),
    sampled(itertools.product(CELLS, STRATEGIES), 17, "nbmgpu/strategies", "nbmgpu/rank/training"),
)
def test_a_model_trains_as_on_one_device(strategy: str, cell: Idiom) -> None:
    said = next((w for (s, part), w in REFUSED.items() if s == strategy and part in cell.name), "")
    if said:
        with pytest.raises(StrategyError, match=said):
            compare(cell, 2, strategy=strategy)
        return
    result = compare(cell, 2, strategy=strategy)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.split() == (strategy != "dp")
