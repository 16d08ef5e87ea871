"""Digests distinguish copies of weights by their bits."""

import pytest
import torch
from idioms.notebook import notebook, on_ranks

import nbmgpu
from nbmgpu.strategies.replication import digest

KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64)


def made(kind):
    torch.manual_seed(0)
    return [torch.randn(4, 6).to(kind), torch.randn(3).to(kind)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_equal_values_have_equal_digests_and_every_bit_counts(kind):
    ours, theirs = made(kind), made(kind)
    assert digest(ours) == digest(theirs) != ""
    theirs[1].view(-1).view(torch.uint8)[0] ^= 1
    assert digest(ours) != digest(theirs)


def test_the_digest_does_not_depend_on_strides():
    weight = torch.randn(5, 7)
    assert digest([weight.T.contiguous().T]) == digest([weight])
    assert digest([weight[:, ::2]]) == digest([weight[:, ::2].contiguous()])
    assert digest([weight[:, :1]]) == digest([weight[:, :1].clone()])
    assert digest([torch.ones(1).expand(8)]) == digest([torch.ones(8)])
    turned = torch.randn(3, dtype=torch.complex64).conj()
    assert digest([turned]) == digest([turned.resolve_conj()])
    flat = weight.view(-1)
    assert digest([flat[1:]]) == digest([flat[1:].clone()])


def test_nan_equals_nan():
    assert digest([torch.full((3,), torch.nan)]) == digest([torch.full((3,), torch.nan)])


def test_without_values_there_is_no_digest():
    lazy = torch.nn.LazyLinear(2).weight
    assert digest([]) == digest([torch.zeros(0), torch.ones(2, device="meta"), lazy]) == ""


IMAGINARY = """
import torch.distributed as dist
class Rotation(nn.Module):
    def __init__(self):
        super().__init__()
        turned = torch.full((8,), float(dist.get_rank()))
        self.weight = nn.Parameter(torch.complex(torch.ones(8), turned))
    def forward(self, x):
        return (x * self.weight).abs().sum(1)
made = Rotation()
optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    made(x).mean().backward()
    optimizer.step()
weights = [None, None]
dist.all_gather_object(weights, made.weight.tolist())
"""


@pytest.mark.usefixtures("runs_folder")
def test_weights_that_differ_in_their_imaginary_parts_are_made_equal():
    names = notebook()
    nbmgpu.run(IMAGINARY, names, **on_ranks(2, {}))
    assert names["weights"][0] == names["weights"][1]
