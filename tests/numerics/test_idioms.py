"""Every idiom leaves on ranks what it leaves on one device."""

from __future__ import annotations

import pytest
from idioms.comparison import assert_equal
from idioms.idiom import Idiom
from idioms.tables import BY_NAME
from matrix_selection import sampled

PAIRS = [(idiom, ranks) for idiom in BY_NAME.values() for ranks in idiom.ranks]


@pytest.mark.parametrize(
    ("idiom", "ranks"),
    sampled(PAIRS, 7, "nbmgpu/rank", "nbmgpu/strategies", "tests/idioms"),
)
def test_ranks_have_the_numbers_of_one_device(idiom: Idiom, ranks: int, record_property) -> None:
    result = assert_equal(idiom, ranks)
    record_property("error", result.error)
    assert result.split() == idiom.split
    assert result.notices == idiom.notices
