"""Optimizations of ddp's reducer: each gives the numbers of the plain way."""

from __future__ import annotations

import math

import pytest
import torch
from idioms.comparison import assert_equal
from idioms.idiom import Idiom, idiom
from idioms.sources import before_step, with_loss
from torch import nn

from nbmgpu.strategies.base import Backward, Unit
from nbmgpu.strategies.buckets import CACHED_ELEMENTS, make_buckets
from nbmgpu.strategies.reduction_extras import (
    DeviceExtras,
    HostExtras,
    ReductionExtras,
    extras_size,
)
from nbmgpu.strategies.scalars import Scalar
from nbmgpu.strategies.trainable import Trainable

WIDE = "model = nn.Sequential(nn.Linear(8, 9000), nn.Tanh(), nn.Linear(9000, 4))\n"
"""More parameters than a bucket of two passes may have."""

OPT = "opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)\n"

LARGE = [
    idiom("uneven batches", setup=WIDE + OPT + "loader = DataLoader(dataset, batch_size=7)"),
    idiom("ignored targets, on one rank and on all", before_step(""), setup=WIDE + OPT + """
Y = Y.clone()
Y[4:6] = Y[8:12] = Y[16:24] = -100
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
"""),
    idiom("a sum", with_loss("F.cross_entropy(model(x), y, reduction='sum') / 40"),
          setup=WIDE + OPT),
    idiom("two passes before a step", """
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    losses.append(loss.item())
    if step % 2:
        opt.step()
        opt.zero_grad(set_to_none=step % 4 == 1)
""", setup=WIDE + OPT),
    idiom("a part that is not used", """
for x, y in loader:
    opt.zero_grad()
    out = model(x)
    if len(losses) % 2:
        out = out + extra(x)
    loss = F.cross_entropy(out, y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", setup=WIDE + """
extra = nn.Linear(8, 4)
opt = torch.optim.Adam([*model.parameters(), *extra.parameters()], lr=1e-3)
""", rank_local="out"),
    idiom("a penalty on gradients", """
for x, y in loader:
    opt.zero_grad()
    x = x.clone().requires_grad_()
    out = model(x)
    loss = F.cross_entropy(out, y)
    slope, = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
    loss = loss + 0.01 * slope.pow(2).sum(1).mean()
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", setup=WIDE + OPT.replace("0.01", "0.001"), rank_local="x out slope", atol=1e-5),
    idiom("sparse gradients",
        before_step("", "head(table((x * 100).long().abs() % 5000).mean(1))"), setup="""
table, head = nn.Embedding(5000, 16, sparse=True), nn.Linear(16, 4)
opt = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
"""),
    idiom("frozen, replaced and unfrozen on the way", """
for x, y in loader:
    if len(losses) == 2:
        model[0].weight.requires_grad_(False)
    if len(losses) == 3:
        model[0].weight.requires_grad_(True)
    if len(losses) == 4:
        model[2] = fresh
        opt = torch.optim.SGD(model.parameters(), lr=0.01)
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", setup=WIDE + OPT + "fresh = nn.Linear(9000, 4)\n"),
]  # fmt: skip


@pytest.mark.parametrize("case", LARGE, ids=lambda case: case.name)
def test_buckets_copied_in_one_pass(case: Idiom) -> None:
    assert_equal(case)


def test_these_buckets_are_large_enough() -> None:
    layers = nn.Sequential(nn.Linear(8, 9000), nn.Linear(9000, 4))
    assert any(b.flat.numel() >= CACHED_ELEMENTS for b in make_buckets(list(layers.parameters())))


def summed(
    kind: type[ReductionExtras], parts: list[Backward], used: list[list[int] | None]
) -> list[float]:
    """Sum the ranks' extras as a collective does; return flags, losses and the total."""
    memory = [torch.full((extras_size(3),), 7.0) for _ in parts]
    extras = [kind(part, 3) for part in memory]
    for each, indices, part in zip(extras, used, parts, strict=True):
        each.fill(indices, part)
    memory[0].copy_(torch.stack(memory).sum(0))
    total = extras[0].total
    divisor: Scalar = torch.as_tensor(total).clone() if kind is DeviceExtras else total
    extras[0].write_losses(parts[0], divisor if float(divisor) else 1.0)
    return [*extras[0].flags.tolist(), float(total), *(s.item() for s in parts[0].scalars)]


def passes(weights: list[float], kind: type[ReductionExtras]) -> list[Backward]:
    values = [[2.0, 5.0], [4.0, 7.0]]
    scalars: list[Scalar] = [torch.tensor(w) if kind is DeviceExtras else w for w in weights]
    return [
        Backward(scalar, False, [torch.tensor(v if w else torch.nan) for v in row], [False, True])
        for scalar, w, row in zip(scalars, weights, values, strict=True)
    ]


@pytest.mark.parametrize("kind", [HostExtras, DeviceExtras])
def test_extras_average_by_weight_and_add_sums(kind: type[ReductionExtras]) -> None:
    found = summed(kind, passes([1.0, 3.0], kind), [None, [0, 2]])
    assert found == [2.0, 1.0, 2.0, 4.0, (2 + 3 * 4) / 4, 12.0]


@pytest.mark.parametrize("kind", [HostExtras, DeviceExtras])
def test_a_value_with_weight_0_may_be_nan(kind: type[ReductionExtras]) -> None:
    found = summed(kind, passes([2.0, 0.0], kind), [[1], []])
    assert found == [0.0, 1.0, 0.0, 2.0, 2.0, 5.0]


@pytest.mark.parametrize("kind", [HostExtras, DeviceExtras])
def test_the_mean_of_nothing_is_nan(kind: type[ReductionExtras]) -> None:
    *_, total, mean, sum_ = summed(kind, passes([0.0, 0.0], kind), [None, None])
    assert total == 0
    assert math.isnan(mean)
    assert math.isnan(sum_)


def trainable(model: nn.Module) -> Trainable:
    return Trainable(Unit([model], [torch.optim.SGD(model.parameters())]))


def test_trainable_parameters_are_unchanged_until_the_cell_changes_them() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    seen = trainable(model)
    assert not seen.changed()
    nn.Linear(3, 3)  # of another model
    assert not seen.changed()
    model[0].weight.requires_grad_(False)
    assert seen.changed()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.append(nn.Linear(2, 2)),
        lambda model: setattr(model[1], "weight", nn.Parameter(torch.ones(2, 2))),
        lambda model: model[0].register_parameter("more", nn.Parameter(torch.ones(1))),
        lambda model: model.__setitem__(1, nn.Linear(2, 2)),
        lambda model: model._modules.update(more=nn.Linear(2, 2)),
        lambda model: model._parameters.update(more=nn.Parameter(torch.ones(1))),
        lambda model: model.__delitem__(1),
    ],
)
def test_added_and_replaced_parameters_are_detected(change: object) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    seen = trainable(model)
    change(model)  # type: ignore[operator]
    assert seen.changed()


def test_a_parameter_appended_to_a_group_is_detected() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    seen = Trainable(Unit([model], [optimizer]))
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1)))
    assert seen.changed()


STEP = """
    loss = F.cross_entropy({forward}, y)
    opt.zero_grad()
    loss.backward({how})
    opt.step()
    losses.append(loss.item())
"""

CHANGED_IN_THE_CELL = [
    idiom("a parameter appended to a group", """
for x, y in loader:
    if len(losses) == 2:
        opt.param_groups[0]["params"].append(scale)
""" + STEP.format(forward="model(x) * scale", how=""),
          setup="scale = nn.Parameter(torch.ones(1))\n"),
    idiom("a module written into another one", """
for x, y in loader:
    if len(losses) == 2:
        model._modules["head"] = fresh
        opt.param_groups[0]["params"] += list(fresh.parameters())
""" + STEP.format(forward="model(x)", how=""), setup="fresh = nn.Linear(12, 4)\n"),
    idiom("gradients that hooks remove", """
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    losses.append(loss.item())
""", notices="tensor-hooks"),
    idiom("gradients that have a graph", """
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward(create_graph=True)
    opt.step()
""", setup=WIDE + OPT, curve=False),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("case", CHANGED_IN_THE_CELL, ids=lambda case: case.name)
def test_parameters_and_gradients_that_the_cell_changes(case: Idiom) -> None:
    assert_equal(case)
