"""``--accumulate N`` is a batch N times as large, and what cannot be accumulated is refused."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import Comparison, run_both
from idioms.idiom import TRAIN
from idioms.notebook import notebook
from idioms.sources import ADAM
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nbmgpu
from nbmgpu.errors import StrategyError

CLIPPED = """
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y, ignore_index=0)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        opt.step()
        scheduler.step()
"""
SCHEDULE = ADAM + "scheduler = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)\n"
LOADER = "loader = DataLoader(TensorDataset(X[:29], Y[:29]), batch_size={})\n"


def accumulated(
    cell: str, size: int, setup: str = SCHEDULE, batch: int = 4, loader: str = LOADER, **options
) -> Comparison:
    """Run a cell whose batches are accumulated, and on one device with larger batches."""
    larger = setup + loader.format(batch * size)
    smaller = setup + loader.format(batch)
    return run_both(cell, smaller, alone=(cell, larger), accumulate=size, **options)


@pytest.mark.parametrize(("ranks", "size"), [(1, 2), (2, 2), (3, 2), (2, 3)])
def test_n_batches_are_one_batch_n_times_as_large(ranks: int, size: int) -> None:
    result = accumulated(CLIPPED, size, gpus=ranks)
    assert result.difference() <= 1e-6
    alone, shared = result.alone, result.ranks
    assert shared["scheduler"].last_epoch == alone["scheduler"].last_epoch
    assert shared["opt"].param_groups[0]["lr"] == alone["opt"].param_groups[0]["lr"]


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_accumulates(stage: int) -> None:
    result = accumulated(TRAIN, 2, ADAM, batch=8, strategy=f"deepspeed_stage_{stage}")
    assert result.difference() < 1e-5


DROPPING = """
def without_zeros(samples):
    '''Leaves out samples of class 0, as people do with pictures that cannot be read.'''
    x, y = zip(*(sample for sample in samples if sample[1]), strict=True)
    return torch.stack(x), torch.stack(y)
loader = DataLoader(TensorDataset(X[:29], Y[:29]), batch_size={}, collate_fn=without_zeros)
"""


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize(("ranks", "size"), [(1, 2), (2, 1), (2, 2)])
def test_samples_that_a_collate_fn_drops_do_not_count(ranks, size, strategy):
    result = accumulated(CLIPPED, size, batch=12, loader=DROPPING, gpus=ranks, strategy=strategy)
    assert result.difference() <= 1e-6


ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
prepared, own, batches = accelerator.prepare(model, opt, loader)
for epoch in range(2):
    for x, y in batches:
        own.zero_grad()
        loss = F.cross_entropy(prepared(x), y)
        accelerator.backward(loss)
        own.step()
"""


ONE_BEHIND = """
def train(x, y):
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
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
@pytest.mark.parametrize("cell", [ACCELERATE, ONE_BEHIND], ids=["accelerate", "in the cell"])
def test_a_loop_that_reads_ahead_does_not_end_the_group_early(cell: str, ranks: int) -> None:
    loader = LOADER.replace("29", "26")
    result = accumulated(cell, 2, ADAM, loader=loader, gpus=ranks)
    assert result.difference() <= 1e-6


PUBLISHED = [0.9472, 0.9440, 0.9527, 0.9687, 0.9570, 0.9343, 0.9411, 0.9186]
"""The weights that the well-known comparison of DDP with gradient accumulation prints."""


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
def test_the_published_comparison_of_ddp_with_accumulation(options):
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
    assert model.weight[0].tolist() == pytest.approx(PUBLISHED, abs=5.1e-5)
    assert "summed-loss" in run.view.notices, "a sum over a larger batch would be another number"


REFUSED = {
    "a cell that accumulates": (
        "accumulates by itself",
        "step = 0",
        TRAIN.replace("opt.step()", "if x.sum() > -1e9 and (step := step + 1) % 2: opt.step()"),
    ),
    "several optimizers": (
        "one optimizer",
        "other = nn.Linear(8, 4); second = torch.optim.SGD(other.parameters(), lr=0.1)",
        TRAIN.replace("model(x)", "(model(x) + other(x))").replace(
            "opt.step()", "opt.step(); second.step()"
        ),
    ),
    "discarded gradients": (
        "removed some",
        "",
        TRAIN.replace("opt.zero_grad()", "\n        for p in model.parameters(): p.grad = None"),
    ),
    "a gradient scaler of the cell": (
        "--precision fp16",
        "",
        "scaler = torch.amp.GradScaler('cpu')\n"
        + TRAIN.replace("opt.step()", "scaler.step(opt); scaler.update()"),
    ),
}


@pytest.mark.parametrize(("why", "setup", "cell"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_accumulated_is_refused(why: str, setup: str, cell: str) -> None:
    with pytest.raises(StrategyError) as caught:
        nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, accumulate=2)
    assert why in str(caught.value)
