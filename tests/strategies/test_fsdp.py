"""fsdp and zero2: numbers of one device, and nothing of FSDP2 to be seen on the cell's objects."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import pytest
import torch
from _pytest.mark import ParameterSet
from idioms.comparison import assert_equal
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import ADAM, BLOCKS, before_step
from matrix_selection import sampled
from torch import nn
from torch.utils.data import DataLoader

import nbmgpu
from nbmgpu.errors import RankError, StrategyError

UNIT = ("Block",)


def cases(idioms: Iterable[Idiom]) -> list[ParameterSet]:
    """Return each idiom under fsdp, and some under zero2, which shares its code."""
    under_fsdp = sampled(((case, "fsdp") for case in idioms), 1)
    return under_fsdp + sampled(((case, "zero2") for case in idioms), 7, "nbmgpu/strategies")


UNITS = [
    idiom("units", setup=BLOCKS),
    idiom("a method that is not forward",
        before_step("", "model.head(model.features(x))"), setup=BLOCKS),
    idiom("states from before the run", setup=BLOCKS + before_step("") + "losses.clear()"),
    idiom("evaluation between epochs", TRAIN.replace(
        "    for x", "    with torch.no_grad():\n"
        "        losses.append(model.eval()(X).mean().item())\n"
        "    model.train()\n    for x"), setup=BLOCKS, curve=False),
    idiom("two forwards, then one backward",
        before_step("", "model(x) + model(x * 0.5)"), setup=BLOCKS),
    idiom("checkpoint of each block", TRAIN, setup=BLOCKS.replace(
        "x = block(x, scale=0.5)",
        "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)")
        .replace("class Block", "import torch.utils.checkpoint\nclass Block")),
    idiom("outputs in a dataclass", setup=BLOCKS.replace(
        "class Block", "import dataclasses\n@dataclasses.dataclass\nclass Hidden:\n"
        "    state: torch.Tensor\n\nclass Block").replace(
        "return x + scale * self.down(torch.tanh(self.up(x)))",
        "return Hidden(x + scale * self.down(torch.tanh(self.up(x))))").replace(
        "scale=0.5)", "scale=0.5).state")),
    idiom("a forward pass that fails, and is caught", before_step("").replace(
        "    loss = ", "    try:\n        model(x[:, :5])\n    except RuntimeError:\n"
        "        seen += [p is q for p, q in zip(params, model.parameters())]\n    loss = "),
        setup=BLOCKS + "params, seen = list(model.parameters()), []\n"),
    idiom("clipped, on an SGD without momentum", before_step(
        "losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05, 1.0).item())"),
        setup=BLOCKS + "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n", curve=False),
]  # fmt: skip


@pytest.mark.parametrize(("case", "strategy"), cases(UNITS))
def test_units_of_a_class(case: Idiom, strategy: str) -> None:
    assert_equal(case, notices="", strategy=strategy, fsdp_units=UNIT)


@pytest.mark.parametrize(("case", "strategy"), cases(UNITS[2:3]))
def test_states_and_parameters_in_host_memory(case: Idiom, strategy: str) -> None:
    assert_equal(case, notices="", strategy=strategy, fsdp_units=UNIT, cpu_offload=True)


@pytest.mark.parametrize(("ranks", "options"), [(1, {}), (3, {"fsdp_units": UNIT})])
def test_one_rank_and_three(ranks: int, options: dict[str, object]) -> None:
    assert_equal(UNITS[0], ranks, notices="", strategy="fsdp", **options)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_error_for_an_unknown_class_lists_the_classes_of_the_model(ranks: int) -> None:
    with pytest.raises(StrategyError, match=r"no module is a Blok\.[\s\S]*Block, Deep, Linear"):
        assert_equal(UNITS[0], ranks, strategy="fsdp", fsdp_units=("Blok",))


# ------------------------------------------------------------------- what the cell sees

SEEN = [
    idiom("parameters captured before", "params = list(model.parameters())\nseen = []\n"
        + before_step("seen.append(sum(p.norm().item() for p in params))\n"
        "    seen.append(params[0].grad.abs().max().item())")),
    idiom("an average of captured weights", "with torch.no_grad():\n"
        "    slow = [p.clone() for p in model.parameters()]\n" + before_step(
        "[s.lerp_(p.detach(), 0.1) for s, p in zip(slow, model.parameters())]")),
    idiom("values written in all ways", """
        with torch.no_grad():
            model.body.weight[0] = 0.5
            model.body.weight.data[1, :3].fill_(0.25)
            model.head.weight.T[2] += 1
            model.head.bias.copy_(torch.arange(4.0))
            nn.init.constant_(model.body.bias, 0.1)
            model.head.weight.view(-1)[::7] = 0
        """ + TRAIN.replace("\n", "\n        ") + """
        with torch.no_grad():
            row = model.body.weight[3]
            row.mul_(2)
            model.body.weight[0] = row
            model.head.weight.data.view(-1)[:5].zero_()
            model.head.bias.data = model.head.bias.data * 2
            numbers = model.head.weight.detach().cpu().numpy().sum().item()
            flat = nn.utils.parameters_to_vector(model.parameters())
            nn.utils.vector_to_parameters(flat * 0.9, model.parameters())
        """, rank_local="row", curve=False),
    idiom("a state_dict from before follows", "before = model.state_dict()\n" + TRAIN +
        "total = sum(v.sum().item() for v in before.values())\n"),
    idiom("a state_dict and a gradient from after, kept", TRAIN + "late = model.state_dict()\n"
        "grad, states = model.body.weight.grad, opt.state_dict()\n", setup=ADAM),
    idiom("the best state_dict, deepcopied and loaded", """
        for epoch in range(2):
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
            if epoch == 0:
                best, warm = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
        with torch.no_grad():
            losses.append(model(X).sum().item())
            model.load_state_dict(best); opt.load_state_dict(warm)
            losses.append(model(X).sum().item())
        """, setup=ADAM, curve=False),
    idiom("a deepcopy in mid-training", TRAIN + "twin = copy.deepcopy(model)\n" + TRAIN +
        "other = F.cross_entropy(twin(X), Y).item()\nkind = type(twin).__name__\n"),
    idiom("gradients changed in the cell", before_step(
        "for p in model.parameters(): p.grad = p.grad.sign() * 0.01; p.grad.mul_(0.5)")),
    idiom("backward for some parameters", before_step("").replace(
        "loss.backward()", "loss.backward(inputs=list(model.head.parameters()))")),
    idiom("functional_call with other values", """
        for x, y in loader:
            fast = {k: v * 0.5 for k, v in model.named_parameters()}
            loss = F.cross_entropy(torch.func.functional_call(model, fast, (x,)), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, rank_local="fast"),
    idiom("a step before the next forward sees it", before_step("").replace(
        "    losses", "    with torch.no_grad(): losses.append(model(X).sum().item())\n    losses"),
        curve=False),
    idiom("type(m) is nn.Linear", "names = [n for n, m in model.named_modules() "
        "if type(m) is nn.Linear]\n" + TRAIN + "names += [n for n, m in model.named_modules() "
        "if type(m) is nn.Linear and isinstance(m.weight, nn.Parameter)]\n"),
    idiom("a penalty in the loss", before_step("").replace(
        "model(x), y)", "model(x), y) + 1e-2 * sum(p.pow(2).sum() for p in model.parameters())")),
    idiom("a GradScaler, infinite on one rank", """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 8, growth_interval=3)
        for i, (x, y) in enumerate(loader):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss = loss + (0 if i != 2 else (X[-1:].sum() * float("inf") * model(x[-1:])).mean())
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        scale = scaler.get_scale()
        """, rank_local="loss", curve=False),
]  # fmt: skip


@pytest.mark.parametrize(("case", "strategy"), cases(SEEN))
def test_the_cell_sees_full_tensors(case: Idiom, strategy: str) -> None:
    assert_equal(case, strategy=strategy)


NORMED = """
class Normed(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.norm() * p.grad / (p.grad.norm() + 1e-6))
opt = Normed(model.parameters(), 0.1)
"""


FACTORED = """
class Factored(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() == 2 and min(p.shape) >= 8:
                    columns = p.grad.square().mean(0, keepdim=True).sqrt()
                    p.sub_(group["lr"] * p.grad / (columns + 1e-3))
                else:
                    p.sub_(group["lr"] * p.grad)
opt = Factored(model.parameters(), 0.01)
"""


WHOLE_STEPS = [
    idiom("Normed", setup=NORMED, notices="whole-steps-Normed"),
    idiom("Factored", setup=FACTORED, notices="whole-steps-Factored"),
    idiom("Muon, its learning rate at 0 in the first step", """
        for x, y in loader:
            opt.zero_grad()
            F.cross_entropy(model(x), y).backward()
            opt.step()
            schedule.step()
        """, setup="""
        model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
        opt = torch.optim.Muon(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1.0, step / 4))
        """, notices="whole-steps-Muon", curve=False),
]  # fmt: skip


@pytest.mark.parametrize(("case", "strategy"), cases(WHOLE_STEPS))
def test_optimizers_that_need_whole_parameters_step_on_them(case: Idiom, strategy: str) -> None:
    assert_equal(case, notices=" ".join(case.notices), strategy=strategy)


REFUSED = [
    (idiom("a hook", TRAIN + "model.body.weight.register_hook(print)\n"), "hook"),
    (idiom("ranks that run different modules", before_step(
        "", "torch.cat([model.blocks[int(r[0] > 0)](r[None]) for r in x])[:, :4]"), setup=BLOCKS),
        "Ranks run different modules"),
]  # fmt: skip


ONE_MORE = f"""{TRAIN}
import time, torch.distributed as dist
if dist.get_rank() == LATE:
    time.sleep(1)
if dist.get_rank() == 1:
    with torch.no_grad():
        model(x)
"""


@pytest.mark.parametrize("late", [0, 1])
def test_one_more_forward_pass_on_one_rank_ends_the_run(late: int) -> None:
    with pytest.raises((StrategyError, RankError), match="different numbers of steps"):
        nbmgpu.run(
            ONE_MORE.replace("LATE", str(late)), notebook(),
            strategy="fsdp", gpus=2, cpu=True, exact="never", timeout=60,
        )  # fmt: skip


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
@pytest.mark.parametrize(("case", "why"), REFUSED, ids=str)
def test_what_cannot_be_sharded_is_refused(case: Idiom, why: str, strategy: str) -> None:
    units = {"fsdp_units": UNIT} if case.setup else {}
    with pytest.raises(StrategyError, match=why):
        assert_equal(case, strategy=strategy, **units)


# ------------------------------------------------------------------- after the run


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_nothing_of_fsdp_is_left_on_the_objects(strategy: str) -> None:
    namespace = notebook(BLOCKS)
    model, optimizer = namespace["model"], namespace["opt"]
    before = {id(m): set(vars(m)) for m in model.modules()}
    parameters = list(model.parameters())
    nbmgpu.run(TRAIN, namespace, gpus=2, cpu=True, strategy=strategy, fsdp_units=UNIT)
    assert namespace["model"] is model
    assert all(p is q for p, q in zip(parameters, model.parameters(), strict=True))
    assert all(p is q for p, q in zip(parameters, optimizer.param_groups[0]["params"], strict=True))
    assert {type(p) for p in parameters} == {nn.Parameter}
    assert all(p.grad is not None and p.grad.shape == p.shape for p in parameters)
    for module in model.modules():
        assert set(vars(module)) == before[id(module)]
        assert "FSDP" not in type(module).__name__
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert {type(value) for value in states} == {torch.Tensor}


def test_outputs_are_freed_without_the_garbage_collector() -> None:
    cell = """
gc.disable()
outputs = []
model[1].register_forward_hook(lambda module, args, output: outputs.append(weakref.ref(output)))
for x in loader:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
freed = [reference() is None for reference in outputs]
gc.enable()
"""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))
    names = {
        "gc": gc,
        "weakref": weakref,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters()),
        "loader": DataLoader(torch.randn(8, 256), batch_size=4),
    }
    run = nbmgpu.run(cell, names, gpus=2, cpu=True, strategy="fsdp", pull=["freed"])
    assert run.results[0]["freed"] == [True, True]
