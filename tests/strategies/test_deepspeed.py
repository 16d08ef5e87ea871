"""DeepSpeed's engine beneath an unchanged cell: what the idioms do not cover."""

from __future__ import annotations

import json

import pytest
import torch
from idiom import TRAIN, compare, idiom
from torch import nn

import nbmgpu
from nbmgpu.errors import NbmgpuError, StrategyError
from nbmgpu.strategies.base import Unit
from nbmgpu.strategies.deepspeed.compatibility import check_unit
from nbmgpu.strategies.deepspeed.config import read_config
from nbmgpu.strategies.strategy_options import StrategyOptions

ADAM = "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)"
STAGES = [f"deepspeed_stage_{name}" for name in ("1", "2", "3", "2_offload", "3_offload")]
QUIET = {"rank-0-values"}


def same(case, strategy, **options):
    result = compare(case, 2, strategy=strategy, **options)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.notices - QUIET == set()
    return result


@pytest.mark.parametrize("strategy", STAGES)
def test_a_stage_leaves_what_one_device_leaves(strategy):
    same(
        idiom("AdamW, not clipped", TRAIN.replace("F.cross", "30 * F.cross"), setup=ADAM), strategy
    )


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
def test_a_rank_holds_its_part_alone(stage, look):
    names = notebook()
    nbmgpu.run(HELD.format(look=look), names, gpus=2, cpu=True, strategy=f"deepspeed_stage_{stage}")
    assert names["elements"] == sum(p.numel() for p in names["model"].parameters()) // 2


def notebook():
    torch.manual_seed(0)
    x, y = torch.randn(44, 8), torch.randint(0, 4, (44,))
    model = nn.ModuleDict({"body": nn.Linear(8, 12), "head": nn.Linear(12, 4)})
    net = Net(model["body"], model["head"])
    return {
        "torch": torch,
        "F": nn.functional,
        "model": net,
        "opt": torch.optim.Adam(net.parameters(), lr=1e-2),
        "loader": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=8),
        "losses": [],
    }


class Net(nn.Module):
    def __init__(self, body, head):
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def alone(cell):
    names = notebook()
    exec(cell, names)
    return names


def gap(a, b):
    pairs = zip(a["model"].parameters(), b["model"].parameters(), strict=True)
    return max((p - q).abs().max().item() for p, q in pairs)


def test_clip_is_that_of_one_device():
    step = "        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)\n        opt.step()"
    expected = alone(TRAIN.replace("        opt.step()", step))
    names = notebook()
    nbmgpu.run(TRAIN, names, gpus=2, cpu=True, strategy="deepspeed_stage_3", clip=0.1)
    assert gap(expected, names) < 1e-5


@pytest.mark.parametrize("stage", [2, 3])
def test_accumulate_is_a_larger_batch(stage):
    double = "loader = torch.utils.data.DataLoader(loader.dataset, batch_size=16)\n"
    expected = alone(double + TRAIN)
    names = notebook()
    name = f"deepspeed_stage_{stage}"
    nbmgpu.run(TRAIN, names, gpus=2, cpu=True, strategy=name, accumulate=2)
    assert gap(expected, names) < 1e-5


@pytest.mark.parametrize(("stage", "precision"), [(1, "bf16"), (3, "bf16")])
def test_half_precision_updates_full_weights(stage, precision):
    expected = alone(TRAIN)
    names = notebook()
    name = f"deepspeed_stage_{stage}"
    nbmgpu.run(TRAIN, names, gpus=2, cpu=True, strategy=name, precision=precision)
    assert {p.dtype for p in names["model"].parameters()} == {torch.float32}
    assert {s["exp_avg"].dtype for s in names["opt"].state.values()} == {torch.float32}
    assert 0 < gap(expected, names) < 3e-2


def test_fp16_is_refused_where_the_device_has_none():
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    if CPU_Accelerator().is_fp16_supported():
        pytest.skip("this CPU computes in fp16")
    with pytest.raises(StrategyError, match="bf16"):
        nbmgpu.run(TRAIN, notebook(), gpus=2, cpu=True, strategy="deepspeed", precision="fp16")


def test_a_checkpoint_of_the_cell_loads_into_a_plain_model(tmp_path):
    path = tmp_path / "model.pt"
    names = notebook()
    cell = (
        TRAIN + f"\ntorch.save(model.state_dict(), {str(path)!r})\nsizes = model.body.weight.shape"
    )
    nbmgpu.run(cell, names, gpus=2, cpu=True, strategy="deepspeed_stage_3")
    plain = notebook()
    plain["model"].load_state_dict(torch.load(path))
    assert gap(plain, alone(TRAIN)) < 1e-5
    assert names["sizes"] == (12, 8)


def test_a_cell_that_fails_leaves_whole_objects():
    names = notebook()
    before = names["model"].body.weight.clone()
    with pytest.raises(ZeroDivisionError):
        nbmgpu.run(TRAIN + "\n1 / 0", names, gpus=2, cpu=True, strategy="deepspeed_stage_3")
    weight = names["model"].body.weight
    assert type(weight) is nn.Parameter
    assert torch.equal(weight, before)
    exec(TRAIN, names)


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
    result = same(case, f"deepspeed_stage_{stage}")
    assert result.ranks["model"].temperature.shape == ()


INFERENCE = """
for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
    with torch.inference_mode():
        losses.append(F.cross_entropy(model.eval()(X), Y).item())
        norms = [p.norm().item() for p in model.parameters()]
        largest = max(p.grad.abs().max().item() for p in model.parameters())
    model.train()
"""


@pytest.mark.parametrize("stage", [2, 3])
def test_evaluation_in_inference_mode_between_epochs(stage):
    same(idiom("inference mode", INFERENCE, setup=ADAM, curve=False), f"deepspeed_stage_{stage}")


SKIPPED = """
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    if x[0, 0].item() == loader.dataset.tensors[0][0, 0].item():
        {leave}
    loss.backward()
    opt.step()
    opt.zero_grad()
"""


@pytest.mark.parametrize("leave", ["continue", "break"])
def test_a_rank_that_skips_a_backward_pass_ends_the_run_at_once(leave):
    # Only rank 0 has the first sample in its shard.
    cell = SKIPPED.format(leave=leave)
    with pytest.raises(NbmgpuError, match="different numbers of steps"):
        nbmgpu.run(cell, notebook(), gpus=2, cpu=True, strategy="deepspeed_stage_3", timeout=100)


ENVIRONMENT = """
import os
before, files = dict(os.environ), os.listdir(".")
{train}
changed = {{k: v for k, v in os.environ.items() if before.get(k) != v}}
left = sorted(set(os.listdir(".")) - set(files))
"""


def test_nothing_is_left_behind(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    names = notebook()
    nbmgpu.run(ENVIRONMENT.format(train=TRAIN), names, gpus=2, cpu=True, strategy="deepspeed")
    assert names["changed"] == {}
    assert names["left"] == []
    assert set(vars(names["model"])) == set(vars(notebook()["model"]))
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
def test_optimizers_that_update_elements_are_taken(make):
    unit, state = unit_of(make), torch.get_rng_state()
    check_unit(unit, 3)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: Rowwise(p, lr=0.1), "parameter as a whole"),
        (torch.optim.Adafactor, "parameter as a whole"),
        (torch.optim.LBFGS, r"cannot step LBFGS[\s\S]*before the step[\s\S]*Try: .*ddp"),
    ],
)
def test_other_optimizers_are_refused(make, words):
    with pytest.raises(StrategyError, match=words):
        check_unit(unit_of(make), 2)


def test_an_optimizer_is_tried_on_shapes_of_the_model():
    check_unit(unit_of(lambda p: Factored(p, lr=0.1), nn.Linear(31, 200)), 2)
    with pytest.raises(StrategyError, match="parameter as a whole"):
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


def read(tmp_path, given, stage=2, offload=False, **tuning):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(given))
    notices = []
    tuned = StrategyOptions(deepspeed_config=str(path), **tuning)
    config = read_config(tuned, stage, offload, 1000, lambda topic, text: notices.append(text))
    return config, notices


def test_clipping_is_off_by_default():
    config = read_config(StrategyOptions(), 2, False, 1000, lambda topic, text: None)
    assert config["gradient_clipping"] == 0.0


def test_a_users_configuration_is_merged(tmp_path):
    given = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 16,
        "gradient_clipping": "auto",
        "wall_clock_breakdown": False,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 77, "overlap_comm": True},
    }
    config, notices = read(tmp_path, given)
    assert config["zero_optimization"]["reduce_bucket_size"] == 77
    assert config["train_micro_batch_size_per_gpu"] == 1
    assert "train_micro_batch_size_per_gpu" in notices[0]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": {"type": "Adam"}}, "optimizer of its own"),
        ({"scheduler": {"type": "WarmupLR"}}, "steps its scheduler"),
        ({"gradient_clipping": 1.0}, "--clip"),
        ({"gradient_accumulation_steps": 4}, "--accumulate"),
        ({"fp16": {"enabled": True}}, "--precision fp16"),
        ({"zero_optimization": {"stage": 3}}, "deepspeed_stage_3"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "2_offload"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "memory of the host"),
        ({"zero_optimization": {"zero_quantized_gradients": True}}, "rounded"),
        ({"zero_optimization": {"round_robin_gradients": True}}, "another order"),
        ({"zero_optimization": {"something_new": 3}}, "not known"),
        ({"something_new": True}, "not known"),
    ],
)
def test_what_would_train_something_else_is_refused(tmp_path, given, words):
    with pytest.raises(StrategyError, match=words):
        read(tmp_path, given)


@pytest.mark.parametrize("text", ['{"zero_optimization": {"stage": 3}}', "{"])
def test_a_configuration_is_refused_before_anything_starts(tmp_path, monkeypatch, text):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    path = tmp_path / "ds.json"
    path.write_text(text)
    with pytest.raises(StrategyError, match=r"stage 3|cannot be read"):
        nbmgpu.run("1", {}, strategy="deepspeed_stage_2", deepspeed_config=str(path), cpu=True)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("stage", "key"), [(1, "reduce_bucket_size"), (2, "reduce_bucket_size"), (3, "sub_group_size")]
)
def test_a_users_configuration_reaches_the_engine(tmp_path, stage, key):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"zero_optimization": {key: 50}}))
    case = idiom("many small parts", setup=ADAM)
    same(case, f"deepspeed_stage_{stage}", deepspeed_config=str(path))
