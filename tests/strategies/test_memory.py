"""What each rank holds of a model in training: parameters, gradients, optimizer states.

The formulas are those of the ZeRO paper (Rajbhandari et al., 1910.02054), for plain float32
with Adam: 4 bytes each for a parameter and its gradient, 8 for its states.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from matrix_selection import sampled
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu

LAYERS, WIDTH = 8, 256
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)

CELL = """
import gc

def held():
    gc.collect()
    sizes = {}
    with torch._C.DisableTorchFunctionSubclass():
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.Tensor):
                for tensor in (thing, thing.grad if thing.is_leaf else None):
                    tensor = getattr(tensor, "_local_tensor", tensor)
                    try:
                        storage = tensor.untyped_storage()
                        sizes[storage.data_ptr()] = storage.nbytes()
                    except (AttributeError, RuntimeError):
                        continue  # there is none, or it has no memory of its own
    return sum(sizes.values())

# Made in the cell: what is mapped from the notebook's bundle is one copy for all ranks.
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
opt = torch.optim.Adam(model.parameters())
for x, y in loader:
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    opt.step()
bytes_held = held()
"""

FORMULAS: dict[str, Callable[[int], float]] = {
    "ddp": lambda n: 4 + 4 + 8,
    "zero1": lambda n: 4 + 4 + 8 / n,
    "zero2": lambda n: (4 + 4 + 8) / n,
    "fsdp": lambda n: (4 + 4 + 8) / n,
    "hsdp": lambda n: (4 + 4 + 8) / 2,  # two ranks in a group
    "tp": lambda n: (4 + 4 + 8) / n,
    "pp": lambda n: (4 + 4 + 8) / n,
    "fsdp+tp": lambda n: (4 + 4 + 8) / n,
    "tp+pp": lambda n: (4 + 4 + 8) / n,
    "fsdp+pp": lambda n: (4 + 4 + 8) / n,
    "sp": lambda n: 4 + 4 + 8,  # its ranks have the same samples, so there are no buckets
}
"""Bytes per parameter between two steps.  zero2 holds 4 more from forward to backward."""


@pytest.mark.parametrize(
    ("strategy", "ranks"), sampled(itertools.product(FORMULAS, (4, 2)), 2, "nbmgpu/strategies")
)
def test_a_rank_holds_its_shard(strategy: str, ranks: int, record_property) -> None:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, WIDTH), torch.randn(8, WIDTH))
    names = {"nn": nn, "torch": torch, "WIDTH": WIDTH, "LAYERS": LAYERS}
    names["loader"] = DataLoader(data, batch_size=8)
    run = nbmgpu.run(CELL, names, gpus=ranks, cpu=True, strategy=strategy)
    held = [run.results[rank]["bytes_held"] / PARAMETERS for rank in range(1, ranks)]
    expected = FORMULAS[strategy](ranks)
    buckets = 4 if strategy in ("ddp", "zero1") else 0  # the buckets of gradients
    record_property("bytes per parameter", held)
    print(f"{strategy} on {ranks} ranks: {max(held):.1f} bytes per parameter, formula {expected}")
    assert expected * 0.95 <= max(held) <= (expected + buckets) * 1.15 + 0.5
