"""Reshapes to the global batch size are detected from the line that calls them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

from nbmgpu.rank.source_analysis.batch_shapes import reshapes_to_batch_size

GLOBAL_BATCH_SIZE = 12
BATCH = 12
ARGS = SimpleNamespace(batch_size=12, others=3)


class Probe:
    """A tensor whose ``view`` returns whether its call is detected."""

    def view(self, *shape: Any) -> bool:
        return reshapes_to_batch_size(sys._getframe(1), GLOBAL_BATCH_SIZE)

    reshape = view


class Model:
    batch_size = 12

    def forward(self, x: Any) -> bool:
        return bool(x.view(self.batch_size, -1))


def test_names_attributes_and_numbers_with_the_global_batch_size() -> None:
    x, batch_size = Probe(), 12
    assert x.view(batch_size, -1)
    assert x.view(BATCH, -1)
    assert x.reshape((batch_size, -1))
    assert x.view([12, 2])
    assert x.reshape(
        ARGS.batch_size,
        -1,
    )
    assert Model().forward(x)
    assert Probe.reshape(x, (12, -1))


def test_sizes_of_the_shard_and_inferred_sizes() -> None:
    x, heads = Probe(), 12
    assert not x.view(-1, 2)
    assert not x.view(len([x]), -1)
    assert not x.view(ARGS.others, 12)
    assert not x.view(-1, heads)
    assert not x.view(2 * 6, -1)  # not detected
