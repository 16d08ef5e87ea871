"""The line of the panel that explains the global batch size."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from nbmgpu.kernel.batch_size import batch_line
from nbmgpu.options.run_options import RunOptions

DATA = torch.arange(32.0)


@pytest.mark.parametrize(
    ("line", "ranks", "size", "expected"),
    [
        ("", 2, 8, "global batch 8 = 2 ranks x 4"),
        ("", 1, 8, "batch 8 on one rank"),
        ("", 2, 7, "global batch 7 on 2 ranks: 3 or 4 each"),
        ("--batch per-rank", 2, 8, "global batch 16 = 2 ranks x 8"),
        ("--batch per-rank", 2, 7, "global batch 14 = 2 ranks x 7"),
        ("--accumulate 2", 1, 8, "global batch 16 = 2 x batch 8 on one rank"),
        ("--accumulate 3", 2, 8, "global batch 24 = 2 ranks x 4 x 3 batches"),
        ("--accumulate 2", 2, 7, "global batch 14 on 2 ranks: 3 or 4 each of 2 batches"),
        ("--strategy tp", 2, 8, "global batch 8, all of it on every rank"),
        (
            "--strategy tp --accumulate 2",
            2,
            8,
            "global batch 16 of 2 batches, all of it on every rank",
        ),
        ("--strategy tp --mesh dp=2,tp=2", 4, 8, "global batch 8 = 2 shards x 4"),
        ("--strategy none", 2, 8, "nothing is split: every rank reads every batch of 8"),
    ],
)
def test_batch_line(line: str, ranks: int, size: int, expected: str) -> None:
    options = RunOptions.parse(line)
    assert batch_line([DataLoader(DATA, batch_size=size)], options, ranks) == expected


def test_equal_loaders_are_listed_once() -> None:
    loaders = [DataLoader(DATA, batch_size=size) for size in (8, 4, 8)]
    text = batch_line([*loaders, "no loader"], RunOptions(), 2)
    assert text == "global batch 8 = 2 ranks x 4; global batch 4 = 2 ranks x 2"
    assert batch_line([], RunOptions(), 2) == ""
