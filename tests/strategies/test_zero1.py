"""zero1: numbers of one device, sharded states, and optimizers that cannot be sharded."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import assert_equal
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import ADAM, CLOSURE
from torch import nn

import nbmgpu
from nbmgpu.errors import StrategyError
from nbmgpu.strategies.per_parameter import cross_parameter_dependence

WARM = ADAM + "F.cross_entropy(model(X), Y).backward()\nopt.step()\n"

CLIPPING = """
class Clipping(torch.optim.Optimizer):
    def __init__(self, params, limit):
        super().__init__(params, {"lr": 0.1})
        self.limit = limit

    @torch.no_grad()
    def step(self):
        grads = [p.grad for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([g.norm() for g in grads]).norm()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad * (self.limit / norm).clamp(max=1))
"""

COUNTING = """
class Counting(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1, "steps": 0})
        self.total = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.total += 1
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] / group["steps"] * p.grad)
opt = Counting(model.parameters())
"""

IDIOMS = [
    idiom("states read in the cell", TRAIN + """
norms = [opt.state[p]["exp_avg"].norm().item() for p in model.parameters()]
total = sum(len(state) for state in opt.state.values())
saved = copy.deepcopy(opt.state_dict())
twin = copy.deepcopy(opt)
twin_states = [twin.state[p]["exp_avg_sq"].sum() for g in twin.param_groups for p in g["params"]]
""", setup=ADAM, rank_local="twin"),
    idiom("states read at every step", TRAIN.replace(
        "losses.append(loss.item())",
        "losses.append(loss.item()); seen.append(opt.state[model.head.bias]['exp_avg'].sum())",
    ), setup=ADAM + "seen = []"),
    idiom("states loaded in mid-training", """
for epoch in range(3):
    if epoch == 1:
        saved = copy.deepcopy(opt.state_dict())
    if epoch == 2:
        opt.load_state_dict(saved)
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
""", setup=WARM),
    idiom("states reset in mid-training", TRAIN + """
from collections import defaultdict
opt.state = defaultdict(dict)
""" + TRAIN, setup=WARM),
    idiom("a moment set to zero", TRAIN + """
opt.state[model.body.weight]["exp_avg"].zero_()
""" + TRAIN, setup=WARM),
    idiom("a group added, two steps later another", """
opt.add_param_group({"params": model.body.parameters(), "lr": 0.01})
""" + TRAIN + """
extra = nn.Linear(4, 4)
opt.add_param_group({"params": extra.parameters(), "weight_decay": 0.1})
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(extra(model(x)), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", setup="opt = torch.optim.AdamW(model.head.parameters(), lr=1e-2)"),
    idiom("step hooks", """
seen = []
opt.register_step_pre_hook(lambda o, a, k: seen.append(len(o.param_groups[0]["params"])))
opt.register_step_post_hook(lambda o, a, k: seen.append(model.head.bias.sum().item()))
""" + TRAIN, setup=ADAM),
    idiom("an own optimizer that counts", setup=COUNTING),
    idiom("Adam with a closure", CLOSURE, setup=ADAM, rank_local="closure"),
    idiom("freezing and unfreezing", """
for epoch in range(3):
    model.body.requires_grad_(epoch != 1)
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        losses.append(loss.item())
""", setup=ADAM),
    idiom("channels last", setup="""
model = nn.Sequential(
    nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 6, 2), nn.GELU(), nn.Flatten(), nn.Linear(6, 4)
).to(memory_format=torch.channels_last)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""),
    idiom("a transposed parameter", """
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(x @ weight, y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", setup="""
weight = torch.randn(4, 8).t().requires_grad_()
opt = torch.optim.AdamW([weight], lr=1e-2)
"""),
]  # fmt: skip


@pytest.mark.parametrize("case", IDIOMS, ids=str)
def test_zero1_has_the_numbers_of_one_device(case: Idiom) -> None:
    assert_equal(case, strategy="zero1")


def test_a_rank_holds_the_states_of_its_own_parameters() -> None:
    cell = TRAIN + "held = sum(s['exp_avg'].numel() for s in dict.values(opt.state))\n"
    namespace = notebook(ADAM)
    run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, strategy="zero1")
    held = [results["held"] for results in run.results.values()]
    sizes = [p.numel() for p in namespace["model"].parameters()]
    assert sum(held) == sum(sizes)
    assert max(held) <= max(sizes)
    assert type(namespace["opt"].state) is not dict
    assert len(namespace["opt"].state) == 4


def test_existing_states_are_sharded() -> None:
    cell = "for x, y in loader:\n    opt.zero_grad()\n    F.cross_entropy(model(x), y).backward()\n"
    cell += "    held = len(dict.keys(opt.state))\n    opt.step()\n"
    run = nbmgpu.run(cell, notebook(WARM), gpus=2, cpu=True, strategy="zero1")
    assert sum(results["held"] for results in run.results.values()) == 4


REFUSED = {
    "LBFGS": (CLOSURE, "opt = torch.optim.LBFGS(model.parameters())", "depends on the others"),
    "a global norm": (TRAIN, CLIPPING + "opt = Clipping(model.parameters(), 1.0)", "others"),
    "a large limit": (TRAIN, CLIPPING + "opt = Clipping(model.parameters(), 100.0)", "others"),
    "a warm-up from nothing": (
        TRAIN,
        CLIPPING + "opt = Clipping(model.parameters(), 1.0)\nopt.param_groups[0]['lr'] = 0.0",
        "others",
    ),
}


@pytest.mark.parametrize(("cell", "setup", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_cross_parameter_dependence_is_refused(cell: str, setup: str, why: str) -> None:
    namespace = notebook(setup)
    with pytest.raises(StrategyError, match=why) as caught:
        nbmgpu.run(cell, namespace, gpus=2, cpu=True, strategy="zero1")
    assert "--strategy ddp" in str(caught.value)


def test_a_closure_called_twice_is_refused() -> None:
    setup = """
class Twice(torch.optim.SGD):
    def step(self, closure=None):
        if closure is not None:
            closure()
        return super().step(closure)
opt = Twice(model.parameters(), lr=0.1)
"""
    with pytest.raises(StrategyError, match="closure several times"):
        nbmgpu.run(CLOSURE, notebook(setup), gpus=2, cpu=True, strategy="zero1")


def test_states_lost_with_a_failed_cell_are_noticed() -> None:
    with pytest.raises(ZeroDivisionError):
        nbmgpu.run(TRAIN + "1 / 0\n", notebook(ADAM), gpus=2, cpu=True, strategy="zero1")
    assert nbmgpu.last_run is not None
    assert "optimizer-states-lost" in nbmgpu.last_run.view.notices


PARAMETERS = (nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(5)))
OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True),
    "AdamW, a tensor for lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.0), foreach=False),
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adafactor": torch.optim.Adafactor,
    "ASGD": torch.optim.ASGD,
    "RMSprop": torch.optim.RMSprop,
    "Rprop": torch.optim.Rprop,
    "SparseAdam": torch.optim.SparseAdam,
    "Muon": lambda p: torch.optim.Muon([p[0]]),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_torchs_optimizers_update_each_parameter_independently(make) -> None:
    optimizer = make(list(PARAMETERS))
    values, state = [p.detach().clone() for p in PARAMETERS], torch.get_rng_state()
    before = len(optimizer.state)
    assert cross_parameter_dependence(optimizer) == ""
    assert len(optimizer.state) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, v) for p, v in zip(PARAMETERS, values, strict=True))


def test_states_made_with_the_optimizer_are_part_of_the_trial() -> None:
    class Heavy(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})
            for p in PARAMETERS:
                self.state[p]["mean"] = torch.zeros_like(p)

        @torch.no_grad()
        def step(self):
            for p in self.param_groups[0]["params"]:
                p.sub_(self.state[p]["mean"].lerp_(p.grad, 0.1))

    assert cross_parameter_dependence(Heavy(PARAMETERS)) == ""


def test_lbfgs_combines_parameters() -> None:
    assert cross_parameter_dependence(torch.optim.LBFGS(PARAMETERS))
