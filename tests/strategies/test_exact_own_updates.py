"""``--exact`` with cells that have no optimizer of torch, or cut batches themselves."""

from __future__ import annotations

import pytest
from idioms.comparison import compare_whole_batches, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.own_updates import CELLS
from idioms.whole_batch import SEEN
from matrix_selection import sampled

import nbmgpu

EXERCISED = ("nbmgpu/strategies/exact", "nbmgpu/rank/undivided_steps.py", "tests/idioms")


@pytest.mark.parametrize("cell", sampled(((cell,) for cell in CELLS), 4, *EXERCISED))
def test_the_numbers_of_one_device(cell: Idiom) -> None:
    result = compare_whole_batches(cell, exact="always")
    result.assert_equal()
    assert result.notices == ({"no-batch"} if cell.name == "tensors as parameters" else set())


BY_HAND = """
parameters = [*model.parameters()]
for i in torch.arange(40).repeat(3).split(8):
    loss = F.cross_entropy(model(X[i]), Y[i])
    for p, grad in zip(parameters, torch.autograd.grad(loss, parameters)):
        p.data -= 0.1 * grad
"""


def test_each_rank_computes_its_samples() -> None:
    names = notebook(SEEN + "del opt")
    call = names["nn"].Module.__call__
    nbmgpu.run(BY_HAND, names, gpus=2, cpu=True, exact="always")
    assert names["rows"][:7] == [8] * 7  # a trial takes about as long as these
    assert names["rows"][-4:] == [4] * 4
    assert names["nn"].Module.__call__ is call


WIDE = """
del opt
X, Y = torch.randn(256, 300), torch.randint(0, 10, (256,))
model = nn.Sequential(
    nn.Linear(300, 2500), nn.Dropout(0.1), nn.GELU(), nn.Linear(2500, 2500), nn.GELU(),
    nn.Linear(2500, 10),
)
w, v = (torch.randn(n, 1000).mul(0.05).requires_grad_() for n in (300, 10))
"""

STEPS = """
for step in range({steps}):
    i = torch.randint(256, (128,))
    loss = F.cross_entropy({output}, Y[i])
    loss.backward()
    with torch.no_grad():
        for p in ({parameters}):
            p -= 0.02 * p.grad
            p.grad = None
    losses.append(loss.item())
"""


def test_a_cell_starts_again_to_divide_its_work() -> None:
    cell = STEPS.format(steps=100, output="model(X[i])", parameters="model.parameters()")
    result = run_both(cell, WIDE, exact="auto")
    assert result.ranks["losses"] == pytest.approx(result.alone["losses"], rel=1e-5)
    assert result.notices == {"restarted"}
    assert "every rank would do all the work" in result.run.view.notices["restarted"].text


@pytest.mark.parametrize(
    ("cell", "notices"),
    [
        ("for _ in range(400): losses.append(model(X[:128]).mean().item())", set()),
        (
            STEPS.format(steps=120, output="torch.relu(X[i] @ w) @ v.T", parameters="w, v"),
            {"not-sharded"},
        ),
    ],
    ids=["inference", "tensors as parameters"],
)
def test_cells_that_do_not_start_again(cell: str, notices: set[str]) -> None:
    """They take long enough."""
    names = notebook(WIDE)
    run = nbmgpu.run(cell, names, gpus=2, cpu=True, exact="auto")
    assert run.view.notices.keys() - {"devices"} == notices


MIXED = """
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    slope, = torch.autograd.grad(loss, model.head.weight, retain_graph=True)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(slope.norm().item())
"""


def test_gradients_of_a_shard_are_those_of_the_batch() -> None:
    result = run_both(MIXED, exact="auto")
    assert result.ranks["losses"] == pytest.approx(result.alone["losses"], rel=1e-5)
    assert "reads gradients" in result.run.view.notices["restarted"].text


def test_a_model_without_an_optimizer_beside_a_sharded_one() -> None:
    setup = """
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.Linear(16, 4))
other = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""
    cell = (
        TRAIN.replace("model(x)", "model(x) + other(x)")
        + """
        with torch.no_grad():
            for p in other.parameters():
                p -= 0.1 * p.grad
                p.grad = None
"""
    )
    result = compare_whole_batches(
        idiom("by hand", cell, setup=setup), strategy="fsdp", exact="always"
    )
    result.assert_equal()


INTO_OPTIMIZER = idiom(
    "gradients of torch.func for an optimizer",
    """
    def loss_of(params, x, y):
        return F.cross_entropy(torch.func.functional_call(model, params, (x,)), y)
    for x, y in loader:
        grads, loss = torch.func.grad_and_value(loss_of)(dict(model.named_parameters()), x, y)
        for name, p in model.named_parameters():
            p.grad = grads[name]
        opt.step()
        losses.append(loss.item())
    """,
)


def test_gradients_of_parameters_by_torch_func_start_the_cell_again() -> None:
    result = compare_whole_batches(INTO_OPTIMIZER, exact="auto", verify=0)
    result.assert_equal()
    assert "gradients of each rank's own loss" in result.run.view.notices["restarted"].text
