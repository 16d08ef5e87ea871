"""A resumed run holds no more memory than one that was never broken off."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

import nbmgpu

CELL = """
import re
for x, in loader:
    opt.zero_grad()
    model(x).square().mean().backward()
    opt.step()
    steps += 1
    if steps == FAILS_AT:
        raise ZeroDivisionError
    with open("/proc/self/status") as file:
        held = int(re.search(r"RssAnon:\\s+(\\d+)", file.read())[1]) * 1024
"""
WIDTH, LAYERS = 1024, 12
PARAMETERS = WIDTH * WIDTH * LAYERS


def notebook(fails_at: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, False) for _ in range(LAYERS)))
    data = torch.utils.data.TensorDataset(torch.randn(64, WIDTH))
    return {
        "__name__": "__main__", "model": model, "opt": torch.optim.Adam(model.parameters(), 1e-4),
        "loader": torch.utils.data.DataLoader(data, 8), "steps": 0, "held": 0,
        "FAILS_AT": fails_at,
    }  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("strategy", ["fsdp", "tp"])
def test_each_rank_holds_its_own_parts_alone(strategy: str) -> None:
    options = {"gpus": 2, "cpu": True, "exact": "never", "strategy": strategy}
    unbroken = notebook(0)
    nbmgpu.run(CELL, unbroken, **options)
    failing = notebook(3)
    with pytest.raises(ZeroDivisionError):
        nbmgpu.run(CELL, failing, checkpoint_every="2steps", **options)
    resumed = notebook(0)
    nbmgpu.run(CELL, resumed, resume=str(nbmgpu.last_run.checkpoints[-1].folder), **options)
    for name, value in unbroken["model"].state_dict().items():
        torch.testing.assert_close(resumed["model"].state_dict()[name], value, atol=1e-6, rtol=0)
    # Whole weights and states of Adam would be 12 bytes per parameter more.
    assert resumed["held"] < unbroken["held"] + 6 * PARAMETERS
