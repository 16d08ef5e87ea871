"""A notebook with a model to train, and cells that train it."""

from __future__ import annotations

from typing import Any

from idioms.notebook import execute

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = TensorDataset(torch.randn(42, 16), torch.randint(0, 4, (42,)))
loader = DataLoader(data, batch_size=8, shuffle=True)
losses = []
"""

TRAIN = """
for epoch in range(50):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""


def notebook(setup: str = SETUP) -> dict[str, Any]:
    """Return the namespace of a notebook that has run ``setup``."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    execute(setup, namespace)
    return namespace


def trained(steps: int) -> dict[str, Any]:
    """Return a notebook after ``steps`` steps of ``TRAIN`` on one device, without nbmgpu."""
    namespace = notebook()
    source = TRAIN.replace("losses.append(loss.item())", "losses.append(loss.item())\n"
                           f"        if len(losses) == {steps}: raise StopIteration")  # fmt: skip
    try:
        exec(source, namespace)
    except StopIteration:
        pass
    return namespace
