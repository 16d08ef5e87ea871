"""Cells that are run without a break, and with one: fail in the middle, and resume."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import nbmgpu
from nbmgpu.runs.run import Run

NOTEBOOK = """
import random
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

torch.manual_seed(0)
X, Y = torch.randn(200, 16), torch.randint(0, 4, (200,))
loader = DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
history = []

class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)
        if len(self.values) == FAIL_AT:
            raise Broken

class Broken(Exception):
    pass

FAIL_AT = None
meter = Meter()

def step(x, y):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    meter.add(loss.item())
"""

LOOP = """
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        step(x, y)
    history.append(i)
"""

FAIL_AT = 30
"""Of 39 steps; in the third epoch."""


def notebook(cells: str = "", fail_at: int | None = None) -> dict[str, Any]:
    """Return the namespace of a notebook in a new kernel."""
    source = NOTEBOOK + cells
    name = f"<notebook {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, name, "exec"), namespace)
    namespace["FAIL_AT"] = fail_at
    return namespace


@dataclass(frozen=True)
class Both:
    """The namespaces after the unbroken and the resumed run, and the three runs."""

    whole: Run
    unbroken: dict[str, Any]
    resumed: dict[str, Any]
    failed: Run
    resuming: Run

    def difference(self) -> float:
        """Return the largest difference of a weight, and of a value of ``meter``."""
        states = [each["model"].state_dict().values() for each in (self.unbroken, self.resumed)]
        values = [each["meter"].values for each in (self.unbroken, self.resumed)]
        assert len(values[0]) == len(values[1])
        weights = max(float((a - b).abs().max()) for a, b in zip(*states, strict=True))
        return max([weights, *(abs(a - b) for a, b in zip(*values, strict=True))])


def assert_same_curve(resumed: Run, unbroken: Run) -> None:
    """Each step has a point, of the same samples: none is missing, and none came twice."""
    own, other = (run.view.curves["loss"] for run in (resumed, unbroken))
    assert own.weights == pytest.approx(other.weights)
    assert own.sums == pytest.approx(other.sums, abs=1e-6)


def run_both(
    cell: str = LOOP,
    cells: str = "",
    every: str = "7steps",
    fail_at: int = FAIL_AT,
    resume_with: dict[str, Any] | None = None,
    **options: Any,
) -> Both:
    """Run a cell to its end; again, so that it fails; and once more, from its checkpoint.

    Args:
        cell: trains ``model``, and calls ``meter.add`` once a step.
        cells: earlier cells of the notebook.
        every: interval between checkpoints.
        fail_at: number of the step that fails.
        resume_with: options of the resumed run that differ.
        options: those of all runs.
    """
    options = {"gpus": 2, "cpu": True, "exact": "never", **options}
    unbroken = notebook(cells)
    nbmgpu.run(cell, unbroken, **options)
    whole = nbmgpu.last_run
    failed = run_until_it_fails(cell, notebook(cells, fail_at), checkpoint_every=every, **options)
    resumed = notebook(cells)
    torch.manual_seed(1)  # a new kernel has other random states
    nbmgpu.run(cell, resumed, resume=True, **options | (resume_with or {}))
    return Both(whole, unbroken, resumed, failed, nbmgpu.last_run)


def run_until_it_fails(cell: str, namespace: dict[str, Any], **options: Any) -> Run:
    """Run a cell that raises ``Broken``; return the run."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  (a class of the notebook)
        nbmgpu.run(cell, namespace, **{"gpus": 2, "cpu": True, **options})
    assert type(raised.value).__name__ == "Broken", raised.value
    return nbmgpu.last_run


def weights(namespace: dict[str, Any]) -> torch.Tensor:
    """Return all parameters of ``model`` as a vector."""
    return torch.cat([p.detach().flatten() for p in namespace["model"].parameters()])
