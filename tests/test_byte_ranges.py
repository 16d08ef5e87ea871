"""Sets of byte ranges."""

import pytest

from nbmgpu.runs.byte_ranges import ByteRanges


@pytest.fixture
def spans():
    found = ByteRanges()
    for start, end in [(2, 4), (4, 6), (9, 10)]:
        found.add(start, end)
    return found


def test_containment(spans):
    assert [n for n in range(12) if n in spans] == [2, 3, 4, 5, 9]


@pytest.mark.parametrize(
    ("start", "stop", "pieces"),
    [
        (0, 12, [(2, False), (6, True), (9, False), (10, True), (12, False)]),
        (3, 5, [(5, True)]),
        (6, 9, [(9, False)]),
        (10, 11, [(11, False)]),
        (5, 5, []),
    ],
)
def test_split_at_range_boundaries(spans, start, stop, pieces):
    assert list(spans.split(start, stop)) == pieces


def test_split_without_ranges():
    assert list(ByteRanges().split(0, 5)) == [(5, False)]
