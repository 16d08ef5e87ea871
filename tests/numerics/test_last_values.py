"""What a step leaves of its batch is one device's after the run: a row for each sample."""

from __future__ import annotations

import pytest
import torch
from idioms.idiom import TRAIN
from idioms.notebook import notebook

import nbmgpu

KEPT = """
        out = model(x)
        predicted, masked = out.argmax(1), torch.where(out > 0, out, 0.0)
        first, flipped = out[0], out.T
"""


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("ddp", 3), ("fsdp", 2)])
def test_rows_of_samples_are_joined(strategy: str, ranks: int) -> None:
    alone, names = notebook(), notebook()
    exec(TRAIN + KEPT, alone)
    run = nbmgpu.run(TRAIN + KEPT, names, gpus=ranks, cpu=True, exact="never", strategy=strategy)
    for name in ("x", "y", "out", "predicted", "masked", "first"):
        torch.testing.assert_close(names[name], alone[name].detach())
    text = run.view.notices["rank-0-values"].text
    assert text.startswith("`first`, `flipped`: "), "what is picked by position, or has other rows"
