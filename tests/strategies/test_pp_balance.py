"""pp: stages balanced by measured time, which moves layers between ranks before the first step."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import assert_equal, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from matrix_selection import sampled
from torch import nn

import nbmgpu
from nbmgpu.errors import OptionError, StrategyError
from nbmgpu.options.run_options import RunOptions
from nbmgpu.strategies.pp.stacks import find_stacks

SLOW = """
import time
class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.004)
        return super().forward(x).tanh()
model = nn.Sequential(*(Slow(8, 8) for _ in range(4)), nn.Linear(8, 200), nn.Tanh(),
                      nn.Linear(200, 4))
"""
"""A model whose first layers have a tenth of the parameters, and almost all of the time."""

SGD = "opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
ADAM = "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"

LIST = SLOW.replace("model = nn.Sequential(*(", """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([*(""").replace("200, 4))", """200, 4)])
    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x) + (0.1 if index == 2 else 0.0)
        return x
model = Model()
""")  # fmt: skip

TRAINED_BEFORE = """
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
kept = opt.state[model[3].weight]
"""

TWO_OPTIMIZERS = """
first = torch.optim.Adam(model[:3].parameters(), lr=0.01)
second = torch.optim.Adam(model[3:].parameters(), lr=0.01)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    again = model(2 * x).square().mean()
    loss.backward()
    first.step()
    again.detach_()
    second.step()
    del loss, again
    model.zero_grad()
losses.append(model(X).sum().item())
"""

CASES = [
    idiom("momentum", setup=SLOW + SGD),
    idiom("states from an earlier cell", setup=SLOW + ADAM + TRAINED_BEFORE),
    idiom("operations between layers", setup=LIST + ADAM),
    # Without the bias that batch normalization subtracts: its gradient would be rounding alone.
    idiom("dropout and batch normalization", setup=SLOW.replace(
        "8, 200), nn.Tanh()", "8, 200, bias=False), nn.BatchNorm1d(200), nn.Dropout(0.3)")
        + SGD.replace("lr=0.1", "lr=0.01"), notices="pipeline-whole-batches", atol=1e-5),
    idiom("accumulated and clipped", """
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    losses.append(loss.item())
    if step % 2:
        losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05).item())
        grad = model[3].weight.grad
        opt.step()
        losses.append(grad.sum().item())
        opt.zero_grad()
""", setup=SLOW + ADAM, curve=False, rank_local="grad"),
    idiom("two optimizers, and states before layers move", TWO_OPTIMIZERS, setup=SLOW,
        curve=False, rank_local="loss again"),
    idiom("evaluation first, then saved and loaded", """
with torch.no_grad():
    losses.append(model.eval()(X).mean().item())
model.train()
""" + TRAIN + """
state = {name: value * 0.5 for name, value in model.state_dict().items()}
model.load_state_dict(state)
""" + TRAIN, setup=SLOW + ADAM, curve=False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "ranks", "mesh"),
    [
        *sampled(((case, 2, ()) for case in CASES), 1),
        *sampled(((case, 4, ("dp=2", "pp=2")) for case in CASES[:3]), 2, "nbmgpu/strategies/pp"),
    ],
)
def test_layers_move_and_the_numbers_stay(case: Idiom, ranks: int, mesh: tuple[str, ...]) -> None:
    result = assert_equal(case, ranks, strategy="pp", balance="time", mesh=mesh)
    notices = result.run.view.notices
    assert "rank 0 has " in notices["stages-by-time"].text
    rows = {row.name.removeprefix("layers."): row.stored for row in result.run.shards.rows}
    assert rows["0"][0] == rows["1"][0] == 72
    # On rank 1, which had the last layer only. On busy cores, layer 2 may stay on rank 0.
    assert rows["3"][1] == 72


def test_stages_of_three_ranks_and_interleaved_ones() -> None:
    case = idiom("layers", setup=SLOW + ADAM)
    assert_equal(case, 3, strategy="pp", balance="time", notices="stages-by-time")
    assert_equal(case, 2, strategy="pp", balance="time", schedule="interleaved")


def test_by_parameters_the_slow_layers_are_on_one_rank() -> None:
    names = notebook(SLOW + SGD)
    run = nbmgpu.run(TRAIN, names, gpus=2, cpu=True, strategy="pp")
    assert [row.stored[0] for row in run.shards.rows[:4]] == [72] * 4


KEEPS = SLOW.replace("return super().forward(x).tanh()", """y = super().forward(x).tanh()
        self.before = y.detach()
        return y""")  # fmt: skip


def test_layers_that_keep_tensors_of_their_own_stay() -> None:
    result = run_both(TRAIN, KEEPS + SGD, 2, strategy="pp", balance="time")
    assert result.difference("losses") < 1e-5
    text = result.run.view.notices["stages-by-parameters"].text
    assert "layer 0 keeps values of its own" in text


def test_a_graph_from_before_the_move_is_refused() -> None:
    cell = """
for x, y in loader:
    weights = sum(p.sum() for p in model[3].parameters())
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    weights.backward()
"""
    with pytest.raises(StrategyError, match="before the first step, when layers were moved"):
        nbmgpu.run(cell, notebook(SLOW + SGD), gpus=2, cpu=True, strategy="pp", balance="time")


def test_after_a_failure_layers_that_have_moved_are_as_before() -> None:
    names = notebook(SLOW + ADAM)
    before = {name: value.clone() for name, value in names["model"].state_dict().items()}
    with pytest.raises(ZeroDivisionError):
        nbmgpu.run(TRAIN + "1 / 0\n", names, gpus=2, cpu=True, strategy="pp", balance="time")
    assert nbmgpu.last_run is not None
    assert "stages-by-time" in nbmgpu.last_run.view.notices
    after = names["model"].state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert not names["opt"].state


def test_sequences_are_flattened_to_be_balanced_by_time() -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)) for _ in range(2)))
    assert len(find_stacks(model, 2, 2)[0].blocks) == 2
    assert len(find_stacks(model, 2, 2, by_time=True)[0].blocks) == 4


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--strategy pp --balance layers", "Try: %%mgpu --strategy pp"),
        ("--strategy ddp --balance time", "Try: %%mgpu --strategy pp --balance time"),
        ("--strategy pp --balance time --split-points 2", "--strategy pp --split-points 2"),
    ],
)  # fmt: skip
def test_options_that_are_refused(line: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        RunOptions.parse(line)
    assert text in str(caught.value)
