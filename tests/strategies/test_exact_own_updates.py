"""``--exact`` with cells that have no optimizer of torch, or cut batches themselves."""

from __future__ import annotations

import dataclasses

import pytest
from idioms.comparison import compare
from idioms.idiom import Idiom
from idioms.notebook import notebook
from idioms.own_updates import CELLS
from matrix_selection import sampled

import nbmgpu

EXERCISED = ("nbmgpu/strategies/exact", "tests/idioms")


@pytest.mark.parametrize("cell", sampled(((cell,) for cell in CELLS), 4, *EXERCISED))
def test_the_numbers_of_one_device(cell: Idiom) -> None:
    tolerant = dataclasses.replace(cell, rtol=5 * cell.rtol, atol=5 * cell.atol)
    result = compare(tolerant, of_whole_batch=True, exact="always")
    result.assert_equal()
    assert result.notices == ({"no-batch"} if cell.name == "tensors as parameters" else set())


SEEN = """
rows = []

class Seen(nn.Linear):
    def forward(self, x):
        rows.append(len(x))
        return super().forward(x)

del opt
model = nn.Sequential(Seen(8, 16), nn.Linear(16, 4))
"""

BY_HAND = """
parameters = [*model.parameters()]
for i in torch.arange(40).repeat(3).split(8):
    loss = F.cross_entropy(model(X[i]), Y[i])
    for p, grad in zip(parameters, torch.autograd.grad(loss, parameters)):
        p.data -= 0.1 * grad
"""


def test_each_rank_computes_its_samples() -> None:
    names = notebook(SEEN)
    call = names["nn"].Module.__call__
    nbmgpu.run(BY_HAND, names, gpus=2, cpu=True, exact="always")
    assert names["rows"][:7] == [8] * 7  # a trial takes about as long as these
    assert names["rows"][-4:] == [4] * 4
    assert names["nn"].Module.__call__ is call
