"""Lazy modules: refused with a way out while they have no shapes, trained as any others after."""

import pytest
import torch
from torch import nn

import nbmgpu
from nbmgpu.errors import StrategyError

CELL = """
for x, y in loader:
    opt.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    opt.step()
"""


def notebook():
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(12, 4), torch.randn(12, 2))
    model = nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.LazyLinear(2))
    return {
        "__name__": "__main__",
        "model": model,
        "opt": torch.optim.SGD(model.parameters(), 0.1),
        "loader": torch.utils.data.DataLoader(data, batch_size=4),
    }


def test_a_model_without_shapes_is_refused_and_what_is_said_helps(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = notebook()
    with pytest.raises(StrategyError, match="lazy modules") as refused:
        nbmgpu.run(CELL, namespace, gpus=2, cpu=True)
    advised = str(refused.value).split("Try: ")[1].split(" once")[0]
    exec(advised, namespace)
    nbmgpu.run(CELL, namespace, gpus=2, cpu=True)
    alone = notebook()
    exec(advised, alone)
    exec(CELL, alone)
    for ours, theirs in zip(
        namespace["model"].parameters(), alone["model"].parameters(), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
