"""Steps, gradients and states of sharded parameters in unusual orders have one device's numbers."""

from __future__ import annotations

import pytest
from idioms.comparison import assert_equal
from idioms.idiom import TRAIN, idiom
from idioms.notebook import notebook
from idioms.sources import BLOCKS, before_step, step

import nbmgpu

SHARDED = pytest.mark.parametrize("strategy", ["fsdp", "zero2", "tp"])

TIED = """
import warnings
a, b = nn.Linear(8, 8), nn.Linear(8, 8)
b.weight = a.weight
model = nn.Sequential(a, nn.ReLU(), b, nn.Linear(8, 4))
parameters = [p for module in model for p in module.parameters()]
with warnings.catch_warnings(action="ignore"):  # torch warns of parameters that are there twice
    opt = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
del a, b, parameters
"""


@SHARDED
def test_a_parameter_that_a_group_has_twice(strategy: str) -> None:
    assert_equal(idiom("twice", TRAIN, setup=TIED), strategy=strategy, exact="never")


SALIENCY = """
opt.zero_grad()
opt.step()  # from here on the model is sharded
inputs = X.clone().requires_grad_()
saliency, = torch.autograd.grad(model(inputs).sum(), inputs)
"""


@SHARDED
def test_gradients_of_samples_before_the_first_backward_pass(strategy: str) -> None:
    saliency = idiom("saliency", SALIENCY + before_step(""), setup=BLOCKS)
    assert_equal(saliency, strategy=strategy, exact="never")


NORMS = """
opt.zero_grad()
opt.step()
with torch.inference_mode():
    norms = [p.norm().item() for p in model.parameters()]
"""


@SHARDED
def test_weights_read_in_inference_mode_before_training(strategy: str) -> None:
    cell = NORMS + before_step("")
    assert_equal(idiom("norms", cell, setup=BLOCKS), strategy=strategy, exact="never")


FREED = f"""
import weakref
{before_step("grads = [weakref.ref(p.grad._shard.local) for p in model.parameters()]")}
alive = sum(grad() is not None for grad in grads)
opt.zero_grad()
freed = sum(grad() is None for grad in grads)
"""


@pytest.mark.parametrize("strategy", ["fsdp", "zero2"])
def test_zero_grad_frees_the_gradients(strategy: str) -> None:
    namespace = notebook(BLOCKS)
    nbmgpu.run(FREED, namespace, gpus=2, cpu=True, strategy=strategy)
    parameters = len([*namespace["model"].parameters()])
    assert namespace["alive"] == namespace["freed"] == parameters


LATER = """
from nbmgpu.strategies.sharding.full_tensor_view import FullTensorView
early = other(X).pow(2).mean()  # autograd still needs what it has saved
for step in range(6):
    opt.zero_grad()
    if step < 2:
        loss = model(X).pow(2).mean()
    else:
        loss = early if step == 2 else other(model(X)).pow(2).mean()
    loss.backward()
    opt.step()
    loss = None
    early = early if step < 2 else None
parameters = [*model.parameters(), *other.parameters()]
sharded = [isinstance(opt.state[p]["exp_avg"], FullTensorView) for p in parameters]
del parameters
"""


def test_states_of_a_module_that_is_sharded_later_are_sharded() -> None:
    setup = "model = nn.Linear(8, 8)\n"
    setup += "other = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))\n"
    setup += "opt = torch.optim.Adam([*model.parameters(), *other.parameters()], lr=0.01)\n"
    namespace = notebook(setup)
    nbmgpu.run(LATER, namespace, gpus=2, cpu=True, strategy="fsdp", exact="never")
    assert namespace["sharded"] == [True] * 6


def test_a_forward_pass_that_fails_ends_with_its_error() -> None:
    cell = step("loss = model(x[:, :7]).mean()")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        nbmgpu.run(cell, notebook(), gpus=2, cpu=True, strategy="fsdp")
    # Frames of the failure have parameters without memory: to save them crashed the ranks.
    assert [rank.exit_code for rank in nbmgpu.last_run.view.ranks] == [1, 1]
