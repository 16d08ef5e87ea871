"""What trains is the same on all ranks, in the same order."""

import gc

import pytest
import torch
from torch import nn

from nbmgpu.rank.training.optimizer_registry import owners


@pytest.mark.parametrize("turned", [False, True])
def test_modules_are_in_the_order_of_their_optimizer(turned):
    older = nn.Linear(2, 2)
    gc.collect()
    younger = nn.Sequential(nn.Linear(2, 2))
    both = [younger, older] if turned else [older, younger]
    optimizer = torch.optim.SGD([p for module in both for p in module.parameters()])
    assert owners([optimizer]) == both
