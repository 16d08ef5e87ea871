"""A notebook whose ranks are held, for the tests of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu

TRAIN = """
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
scheduler.step()
"""
EVALUATE = """
import os
total, pid = 0.0, os.getpid()
with torch.no_grad():
    for x, y in loader:
        total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
"""
TOLERANCE = {"rtol": 1e-4, "atol": 1e-6}


def notebook() -> dict[str, Any]:
    """Return the names of a notebook with a model that has not been trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(42, 6), torch.randn(42, 4))
    return {
        "torch": torch,
        "nn": nn,
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        "loader": DataLoader(data, batch_size=16),
        "losses": [],
    }


def run(source: str, names: dict[str, Any], **options: Any) -> nbmgpu.Run:
    finished = nbmgpu.run(source, names, timeout=100, **options)
    assert finished is not None
    return finished
