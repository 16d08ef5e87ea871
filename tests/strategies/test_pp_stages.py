"""pp: which layers each rank has, where a model's layers are of unequal size."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import assert_equal
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from matrix_selection import sampled
from torch import nn

from nbmgpu.strategies.pp.stacks import Stack, find_stacks

SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"

NESTED = """
def layer():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
model = nn.Sequential(
    nn.Linear(8, 8), nn.Sequential(*(layer() for _ in range(6))), nn.Linear(8, 4))
"""

CUSTOM = """
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x
model = nn.Sequential(nn.Linear(8, 8), Body(), nn.Linear(8, 4))
"""

DEEP = """
model = nn.Sequential(nn.Sequential(nn.Linear(8, 8)), nn.Sequential(
    nn.ReLU(), nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(7)))),
    nn.Sequential(nn.Linear(8, 4)))
"""

FEW = """
model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)),
                      nn.Sequential(nn.Tanh(), nn.Linear(8, 4)))
"""

ATTRIBUTES = """
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.LSTM(4, 20, batch_first=True)
        self.second = nn.LSTM(20, 16, batch_first=True)
        self.head = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
    def forward(self, x):
        x, _ = self.first(x.view(-1, 2, 4))
        x, _ = self.second(x)
        return self.head(x[:, -1])
model = Recurrent()
"""

SHIFTED = """
inner = model[1]
inner.forward = lambda x: 0.5 * type(inner).forward(inner, x)
"""
HOOKED = "model[1].register_forward_hook(lambda module, args, output: 0.5 * output)\n"

CASES = [
    idiom("nested sequences", setup=NESTED + SGD),
    idiom("sequences in sequences in sequences", setup=DEEP + SGD),
    idiom("a sequence of modules with layers of their own", setup=CUSTOM + SGD),
    idiom("fewer members than ranks", setup=FEW + SGD),
    idiom("large attributes beside a small sequence", setup=ATTRIBUTES + SGD,
        notices="pipeline-whole-batches"),  # the batch is the second dimension of hidden states
    idiom("a hook on a nested sequence", setup=NESTED + HOOKED + SGD),
    idiom("a nested sequence is called by itself", TRAIN.replace(
        "model(x), y)", "model(x), y) + model[1](x).square().mean() + model[1][2:4](x).mean()"),
        setup=NESTED + SGD),
    idiom("a hook that reads between layers of a nested sequence", """
def keep(module, args, output):
    losses.append(output.sum().item())
handle = model[1].register_forward_hook(keep)
""" + TRAIN + "handle.remove()\n", setup=NESTED + SGD, curve=False, rank_local="handle keep"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        *sampled(((case, 2) for case in CASES), 1),
        *sampled(((case, 3) for case in CASES), 7, "nbmgpu/strategies/pp"),
    ],
)
def test_numbers_of_one_device(case: Idiom, ranks: int) -> None:
    result = assert_equal(case, ranks, notices=" ".join(case.notices), strategy="pp")
    total = result.run.shards.total
    assert max(total.stored) < (1.25 if ranks == 2 else 1.7) * total.elements / ranks


def test_a_patched_forward_of_a_nested_sequence_is_called() -> None:
    result = assert_equal(idiom("patched", setup=NESTED + SHIFTED + SGD), strategy="pp")
    assert result.run.record.world_size == 2


def model_of(setup: str) -> nn.Module:
    model: nn.Module = notebook(setup)["model"]
    return model


def begins(stacks: list[Stack]) -> list[list[str]]:
    """Return the names of the blocks with which stages begin, of each stack."""
    return [[s.names[s.stages.index(i)] for i in range(max(s.stages) + 1)] for s in stacks]


@pytest.mark.parametrize(
    ("setup", "ranks", "expected"),
    [
        (NESTED, 2, [["0", "1.3"]]),
        (NESTED + HOOKED, 2, [["1.0", "1.3"]]),
        (NESTED + SHIFTED, 3, [["1.0", "1.2", "1.4"]]),
        (CUSTOM, 3, [["1.layers.0", "1.layers.2", "1.layers.4"]]),
        (DEEP, 4, [["0.0", "1.1.1", "1.1.3", "1.1.5"]]),
        (FEW, 3, [["0.0", "0.2", "1.1"]]),
        (ATTRIBUTES, 2, [["first", "second"]]),
        ("model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)))", 2,
         [["0", "2"]]),
    ],
)  # fmt: skip
def test_no_rank_has_much_more_than_its_share(
    setup: str, ranks: int, expected: list[list[str]]
) -> None:
    assert begins(find_stacks(model_of(setup), ranks, ranks)) == expected


def test_split_points_are_names_in_nested_sequences_too() -> None:
    model = model_of(NESTED)
    assert begins(find_stacks(model, 2, 2, ("1",))) == [["0", "1"]]
    assert begins(find_stacks(model, 3, 3, ("1.1", "1.4"))) == [["0", "1.1", "1.4"]]
    assert begins(find_stacks(model, 2, 2, ("1.5.2",))) == [["0", "1.5.2"]]
    named = nn.Sequential()
    for name in ("up", "middle", "down"):
        named.add_module(name, nn.Linear(8, 8))
    assert begins(find_stacks(named, 2, 2, ("down",))) == [["up", "down"]]


def test_a_container_that_two_modules_have_is_divided_once() -> None:
    body = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    first, second = nn.Module(), nn.Module()
    first.body = second.body = body
    root = nn.Module()
    root.first, root.second = first, second
    assert begins(find_stacks(root, 2, 2)) == [["first.body.0", "first.body.2"]]


def test_members_that_share_a_parameter_stay_together() -> None:
    tied = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    tied[2].weight = tied[0].weight
    model = nn.Sequential(nn.Linear(8, 8), tied, nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)))
    (stack,) = find_stacks(model, 4, 4)
    assert stack.names == ("0", "1", "2.0", "2.1")
    assert torch.equal(stack.blocks[1](torch.ones(8)), tied(torch.ones(8)))
