"""``--accumulate N`` is a batch N times as large, and what cannot be accumulated is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu

TRAIN = """
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y, ignore_index=0)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        scheduler.step()
"""


def notebook(batch: int, samples: int = 29) -> dict[str, object]:
    """A model, an optimizer and a loader whose batches have uneven numbers of targets."""
    torch.manual_seed(0)
    x, y = torch.randn(samples, 8), torch.randint(0, 4, (samples,))
    y[2:4] = 0
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    return {
        "nn": nn,
        "model": model,
        "opt": opt,
        "scheduler": torch.optim.lr_scheduler.StepLR(opt, 3, 0.5),
        "loader": DataLoader(TensorDataset(x, y), batch_size=batch),
    }


def gap(a: dict[str, object], b: dict[str, object]) -> float:
    """The largest difference between the weights of two notebooks."""
    one, other = (list(n["model"].parameters()) for n in (a, b))
    return max((p - q).abs().max().item() for p, q in zip(one, other, strict=True))


@pytest.mark.parametrize(("ranks", "size"), [(1, 2), (2, 2), (3, 2), (2, 3)])
def test_n_batches_are_one_batch_n_times_as_large(ranks, size):
    alone, shared = notebook(4 * size), notebook(4)
    exec(TRAIN, alone)
    nbmgpu.run(TRAIN, shared, gpus=ranks, cpu=True, accumulate=size)
    assert gap(alone, shared) <= 1e-6
    assert shared["scheduler"].last_epoch == alone["scheduler"].last_epoch
    assert shared["opt"].param_groups[0]["lr"] == alone["opt"].param_groups[0]["lr"]


def without_zeros(samples):
    """Leave out samples of class 0, as people do with pictures that cannot be read."""
    x, y = zip(*(sample for sample in samples if sample[1]), strict=True)
    return torch.stack(x), torch.stack(y)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(("ranks", "size"), [(1, 2), (2, 1), (2, 2)])
def test_samples_that_a_collate_fn_drops_do_not_count(ranks, size, strategy):
    alone, shared = notebook(12 * size), notebook(12)
    for each in (alone, shared):
        batch = each["loader"].batch_size
        each["loader"] = DataLoader(each["loader"].dataset, batch, collate_fn=without_zeros)
    exec(TRAIN, alone)
    nbmgpu.run(TRAIN, shared, gpus=ranks, cpu=True, accumulate=size, strategy=strategy)
    assert gap(alone, shared) <= 1e-6


LOOKING_AHEAD = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
prepared, own, batches = accelerator.prepare(model, opt, loader)
for epoch in range(2):
    for x, y in batches:
        own.zero_grad()
        loss = nn.functional.cross_entropy(prepared(x), y)
        accelerator.backward(loss)
        own.step()
"""


ONE_BEHIND = """
def train(x, y):
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()

for epoch in range(2):
    before = None
    for batch in loader:
        if before is not None:
            train(*before)
        before = batch
    train(*before)
"""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("cell", [LOOKING_AHEAD, ONE_BEHIND], ids=["accelerate", "by hand"])
def test_a_loop_that_reads_ahead_does_not_end_the_group_early(cell, ranks):
    alone, shared = notebook(8, 26), notebook(4, 26)
    exec(cell, alone)
    nbmgpu.run(cell, shared, gpus=ranks, cpu=True, accumulate=2)
    assert gap(alone, shared) <= 1e-6


CLASSIC = [0.9472, 0.9440, 0.9527, 0.9687, 0.9570, 0.9343, 0.9411, 0.9186]
"""The weights that the classic comparison of DDP with gradient accumulation prints."""


@pytest.mark.parametrize(
    "options",
    [
        {"gpus": 2, "batch": "per-rank"},
        {"gpus": 1, "accumulate": 2},
        {"gpus": 2, "accumulate": 2},
        {"gpus": 2, "batch": "per-rank", "strategy": "fsdp"},
        {"gpus": 2, "batch": "per-rank", "strategy": "zero1"},
    ],
    ids=str,
)
def test_the_classic_demo(options):
    torch.manual_seed(0)
    data = torch.rand(8, 8)
    model = nn.Linear(8, 1, bias=False)
    nn.init.ones_(model.weight)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    names = {"model": model, "opt": opt, "loader": DataLoader(TensorDataset(data), batch_size=4)}
    run = nbmgpu.run(
        """
for epoch in range(2):
    for (row,) in loader:
        opt.zero_grad()
        loss = model(row).sum()
        loss.backward()
        opt.step()
""",
        names,
        cpu=True,
        **options,
    )
    assert model.weight[0].tolist() == pytest.approx(CLASSIC, abs=5.1e-5)
    assert "summed-loss" in run.view.notices, "a sum over a larger batch would be another number"


def refused(cell: str, **names: object) -> str:
    """Run a cell that must be refused; return why."""
    with pytest.raises(nbmgpu.errors.StrategyError) as caught:
        nbmgpu.run(cell, notebook(4) | names, gpus=2, cpu=True, accumulate=2)
    return str(caught.value)


def test_a_cell_that_accumulates_by_itself_is_refused():
    own = TRAIN.replace("opt.step()", "if x.sum() > -1e9 and (step := step + 1) % 2: opt.step()")
    assert "accumulates by itself" in refused(own, step=0)


def test_several_optimizers_are_refused():
    other = nn.Linear(8, 4)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    cell = TRAIN.replace("model(x)", "(model(x) + other(x))").replace(
        "opt.step()", "opt.step(); second.step()"
    )
    assert "one optimizer" in refused(cell, other=other, second=second)


def test_discarded_gradients_are_noticed():
    cell = TRAIN.replace("opt.zero_grad()", "\n        for p in model.parameters(): p.grad = None")
    assert "removed some" in refused(cell)


def test_a_gradient_scaler_of_the_cell_is_refused():
    cell = "scaler = torch.amp.GradScaler('cpu')\n" + TRAIN.replace(
        "opt.step()", "scaler.step(opt); scaler.update()"
    )
    assert "--precision fp16" in refused(cell, torch=torch)
