"""Predicted against measured: the peak of tensors on a rank lies in the range that is printed."""

from __future__ import annotations

import functools

import pytest
from rehearsed import MODELS, advised, measured, tensors_of

MIB = 1 << 20
advice_for = functools.cache(lambda name: advised(MODELS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp"])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_lies_in_the_range(name, strategy, record_property):
    row = advice_for(name).row(strategy)
    found = measured(MODELS[name], strategy)
    low, high = tensors_of(row)
    record_property("measured", found.peak)
    print(
        f"| {name} | `{strategy}` | {low / MIB:.1f} to {high / MIB:.1f} | {found.peak / MIB:.1f} |"
        f" {(low + high) / 2 / found.peak - 1:+.0%} |"
    )
    assert low <= found.peak <= high
    assert high < 2 * low, "too wide to be of use"
    process = next(part for part in row.parts if part.kind == "extra")
    assert process.low <= found.base <= process.high
