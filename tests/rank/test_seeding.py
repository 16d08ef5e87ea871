"""Generators without a seed get the same seed on all ranks, and another one in each run."""

import nbmgpu

CELL = """
import random, tempfile
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

drawn = {
    "default_rng": np.random.default_rng().integers(2**40),
    "RandomState": np.random.RandomState().randint(2**30),
    "Random": random.Random().random(),
}
random.seed()
np.random.seed()
torch.seed()
drawn |= {"random": random.random(), "numpy": np.random.rand(), "torch": torch.rand(()).item()}
folder = tempfile.mkdtemp()
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
in_steps, in_workers = [], []
for x, y in DataLoader(TensorDataset(torch.randn(8, 2), torch.randn(8, 1)), batch_size=4):
    in_steps.append(np.random.default_rng().integers(2**40))
    opt.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    opt.step()

class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return int(np.random.default_rng().integers(2**40))

in_workers = torch.cat(list(DataLoader(Noise(), num_workers=2))).tolist()
"""


def run_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    return nbmgpu.run(CELL, {"__name__": "__main__"}, gpus=2, cpu=True).results.values()


def test_ranks_draw_alike_where_one_device_decides_for_all(tmp_path, monkeypatch):
    first, second = run_cell(tmp_path, monkeypatch)
    assert first["drawn"] == second["drawn"]
    assert first["folder"] != second["folder"]
    steps = {*first["in_steps"], *second["in_steps"]}
    workers = {*first["in_workers"], *second["in_workers"]}
    assert (len(steps), len(workers)) == (4, 8)
    again, _ = run_cell(tmp_path, monkeypatch)
    assert not set(again["drawn"].values()) & set(first["drawn"].values())
