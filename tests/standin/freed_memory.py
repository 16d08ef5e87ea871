"""Prints what happens to the notebook's own memory on the device while ranks run."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu
from nbmgpu.check.device_memory import LeastMemory
from nbmgpu.serialization import device_memory

LIMIT = 1 << 26  # as STANDIN_MEMORY says

CELL = """
for x, y in loader:
    loss = torch.nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
import time
time.sleep(0.5)
"""
FAILING = "for x, y in loader:\n    raise ValueError(part.sum().item())"
RESTARTING = CELL.replace("model(x)", "torch.nn.functional.dropout(model(x))")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10)).to("standin")
opt = torch.optim.SGD(model.parameters(), lr=0.1)
X, Y = torch.randn(64, 512, device="standin"), torch.randint(0, 10, (64,), device="standin")
loader = DataLoader(TensorDataset(X, Y), batch_size=16)
row = model[0].weight[3]  # a view that the cell does not read
part = torch.ones(1 << 20, device="standin")[:1000]  # the rest is not in the bundle
names = {"torch": torch, "loader": loader, "model": model, "opt": opt, "part": part}
alone = copy.deepcopy(model)


def allocated() -> int:
    return int(torch.standin.memory_allocated())  # type: ignore[attr-defined]


def equal(other: nn.Module) -> bool:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def least_during(cell: str) -> int:
    """Run a cell; return the least memory that the notebook had meanwhile."""
    with LeastMemory() as least, contextlib.redirect_stdout(io.StringIO()):
        nbmgpu.run(cell, names, gpus=2)
    return least.seen


found = {"used": sum(p.nbytes for p in model.parameters()) + X.nbytes + Y.nbytes}
with contextlib.redirect_stdout(io.StringIO()) as plan:
    nbmgpu.run(CELL, names, gpus=2, dry_run=True)
found["plan"] = [line for line in plan.getvalue().splitlines() if line.startswith("freed")]
by_hand = torch.optim.SGD(alone.parameters(), lr=0.1)
exec(CELL, {"torch": torch, "loader": loader, "model": alone, "opt": by_hand})
before = allocated()
found["freed"] = before - least_during(CELL)
found["trained"] = equal(alone) and torch.equal(row, model[0].weight[3])

before, kept = allocated(), copy.deepcopy(model)
try:
    least_during(FAILING)
except ValueError as error:
    found["error"] = str(error)
found["kept"] = equal(kept)

least_during(RESTARTING)
found["restarted"] = "restarted" in nbmgpu.last_run.view.notices

# Another process takes the memory meanwhile: what was freed waits for room.
kept, device_memory.WAIT = copy.deepcopy(model), 0.2
taken: list[torch.Tensor] = []


def take() -> None:
    before = allocated()
    while allocated() >= before:
        pass
    taken.append(torch.empty(LIMIT - allocated() - 1024, dtype=torch.uint8, device="standin"))


thread = threading.Thread(target=take)
thread.start()
try:
    least_during(FAILING)
except ValueError:
    found["full"] = nbmgpu.last_run.view.notices["gpu-memory"].text
thread.join()
taken.clear()
least_during("pass")
found["later"] = equal(kept)

names |= {"unread": [torch.zeros(1 << 19, device="standin")], "again": {"row": row}}
try:
    least_during("torch.zeros(1 << 26, device='standin')\nmodel")
except torch.OutOfMemoryError:
    found["unread"] = nbmgpu.last_run.view.notices["unread-gpu-memory"].text
print(json.dumps(found))
