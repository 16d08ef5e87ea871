"""``--exact always``: every cell has the numbers of one device, also where samples meet."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from idioms import notices
from idioms.comparison import Comparison, compare
from idioms.idiom import Idiom, idiom
from idioms.tables import BY_NAME
from idioms.whole_batch import CELLS
from matrix_selection import sampled

EXERCISED = ("nbmgpu/strategies/exact", "nbmgpu/strategies/sequence", "tests/idioms")


def exact(cell: Idiom, ranks: int = 2, strategy: str = "ddp", **options: object) -> Comparison:
    """Compare a cell, with the rounding of sums that are computed in parts, at every layer."""
    tolerant = dataclasses.replace(cell, rtol=5 * cell.rtol, atol=5 * cell.atol)
    return compare(
        tolerant, ranks, of_whole_batch=True, strategy=strategy, exact="always", **options
    )


@pytest.mark.parametrize(
    ("strategy", "cell"),
    sampled(itertools.product(("ddp", "zero1"), BY_NAME.values()), 23, *EXERCISED),
)
def test_every_idiom(strategy: str, cell: Idiom) -> None:
    exact(cell, strategy=strategy).assert_equal()


@pytest.mark.parametrize(
    ("topic", "cell", "setup"),
    sampled(notices.TOPICS.values(), 7, *EXERCISED, ids=notices.TOPICS),
)
def test_cells_that_are_given_a_notice_without_it(topic: str, cell: str, setup: str) -> None:
    result = exact(idiom(topic, cell, setup=setup, curve=False))
    result.assert_equal()
    assert topic not in result.notices


@pytest.mark.parametrize("cell", sampled(((cell,) for cell in CELLS), 5, *EXERCISED))
def test_cells_whose_samples_meet(cell: Idiom) -> None:
    result = exact(cell)
    result.assert_equal()
    assert result.notices <= WHOLE.get(cell.name, set())


WHOLE = {
    "instance norm": {"whole-batch-2 (InstanceNorm2d)"},
}
"""Modules that run on the whole batch: instance norm averages its statistics over samples."""
