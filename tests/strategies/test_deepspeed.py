"""DeepSpeed's engine beneath an unchanged cell: what the idioms do not cover."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import assert_equal, run_both
from idioms.idiom import TRAIN, idiom
from idioms.notebook import notebook
from idioms.sources import ADAM, CLIP
from torch import nn

import nbmgpu
from nbmgpu.errors import StrategyError
from nbmgpu.strategies.base import Unit
from nbmgpu.strategies.deepspeed.compatibility import check_unit

STAGES = [f"deepspeed_stage_{name}" for name in ("1", "2", "3", "2_offload", "3_offload")]


@pytest.mark.parametrize("strategy", STAGES)
def test_a_stage_has_the_numbers_of_one_device(strategy):
    case = idiom("AdamW, not clipped", TRAIN.replace("F.cross", "30 * F.cross"), setup=ADAM)
    assert_equal(case, notices="", strategy=strategy)


HELD = """
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    {look}
"""


@pytest.mark.parametrize(
    ("stage", "look"),
    [
        (
            2,
            "layout = model.body.weight.engine_wrapper.layout\n"
            "    elements = sum(flat.numel() for flat in layout.fp32_partitions)\n"
            "    del layout",
        ),
        (3, "elements = sum(p.ds_tensor.numel() for p in model.parameters())"),
    ],
)
def test_a_rank_holds_its_partition(stage, look):
    names = notebook(ADAM)
    nbmgpu.run(HELD.format(look=look), names, gpus=2, cpu=True, strategy=f"deepspeed_stage_{stage}")
    assert names["elements"] == sum(p.numel() for p in names["model"].parameters()) // 2


def test_clip_equals_clipping_in_the_cell():
    clipped = TRAIN.replace("opt.step()", f"{CLIP}; opt.step()")
    result = run_both(TRAIN, ADAM, alone=(clipped, ADAM), strategy="deepspeed_stage_3", clip=0.1)
    assert result.difference() < 1e-5


SCALED = """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 12), nn.Linear(12, 4)
        self.temperature = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.head(torch.tanh(self.body(x))) * self.temperature
model = Scaled()
"""


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_0_dimensional_parameter_trains(stage):
    case = idiom("a temperature", setup=SCALED + ADAM)
    result = assert_equal(case, notices="", strategy=f"deepspeed_stage_{stage}")
    assert result.ranks["model"].temperature.shape == ()


ENVIRONMENT = """
import os
before, files = dict(os.environ), os.listdir(".")
{train}
changed = {{k: v for k, v in os.environ.items() if before.get(k) != v}}
left = sorted(set(os.listdir(".")) - set(files))
"""


def test_environment_and_working_directory_are_unchanged(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    names = notebook(ADAM)
    nbmgpu.run(ENVIRONMENT.format(train=TRAIN), names, gpus=2, cpu=True, strategy="deepspeed")
    assert names["changed"] == {}
    assert names["left"] == []
    assert set(vars(names["model"])) == set(vars(notebook(ADAM)["model"]))
    assert "deepspeed." not in capfd.readouterr().out


class Rowwise(torch.optim.SGD):
    """Scales a gradient by its norm, as LARS does."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.sub_(group["lr"] * p.grad / p.grad.norm())


class Factored(torch.optim.SGD):
    """Scales the gradient of a large matrix by its columns' norms, as Adafactor of timm does."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                large = p.dim() == 2 and min(p.shape) >= 32
                p.data.sub_(group["lr"] * (p.grad / p.grad.norm(dim=0) if large else p.grad))


def unit_of(make, model=None):
    model = model or nn.Linear(4, 3)
    return Unit([model], [make(model.parameters())])


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=0.0),
        torch.optim.NAdam,
        torch.optim.Rprop,
    ],
)
def test_elementwise_optimizers_are_accepted(make):
    unit, state = unit_of(make), torch.get_rng_state()
    check_unit(unit, 3)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: Rowwise(p, lr=0.1), "depends on whole parameters"),
        (torch.optim.Adafactor, "depends on whole parameters"),
        (torch.optim.LBFGS, r"cannot step LBFGS[\s\S]*before the step[\s\S]*Try: .*ddp"),
    ],
)
def test_other_optimizers_are_refused(make, words):
    with pytest.raises(StrategyError, match=words):
        check_unit(unit_of(make), 2)


def test_an_optimizer_is_tried_on_shapes_of_the_model():
    check_unit(unit_of(lambda p: Factored(p, lr=0.1), nn.Linear(31, 200)), 2)
    with pytest.raises(StrategyError, match="depends on whole parameters"):
        check_unit(unit_of(lambda p: Factored(p, lr=0.1), nn.Linear(32, 200)), 2)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Embedding(4, 3, sparse=True), "sparse"),
        (nn.Linear(4, 3).double(), "float64"),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).half()), "float16, float32"),
    ],
)
def test_models_that_partitions_cannot_hold_are_refused(model, words):
    with pytest.raises(StrategyError, match=words):
        check_unit(unit_of(lambda p: torch.optim.SGD(p, lr=0.1), model), 2)


def test_bare_tensors_are_refused():
    loose = nn.Parameter(torch.zeros(3))
    with pytest.raises(StrategyError, match="no module"):
        check_unit(Unit([], [torch.optim.SGD([loose], lr=0.1)]), 2)
