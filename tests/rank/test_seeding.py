"""Generators without a seed get the same seed on all ranks, and another one in each run."""

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


def test_unseeded_generators_draw_the_same_numbers_on_all_ranks(run_cell):
    first, second = run_cell(CELL).run.results.values()
    assert first["drawn"] == second["drawn"]
    assert first["folder"] != second["folder"]
    steps = {*first["in_steps"], *second["in_steps"]}
    workers = {*first["in_workers"], *second["in_workers"]}
    assert (len(steps), len(workers)) == (4, 8)
    again, _ = run_cell(CELL).run.results.values()
    assert not set(again["drawn"].values()) & set(first["drawn"].values())
