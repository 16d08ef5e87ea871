"""ddp's own options: bucket views, static graphs, compression, and find_unused."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import assert_equal, run_both
from idioms.differences import difference
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import ADAM, CHANGING, CLIP, SOMETIMES, with_loss
from idioms.tables import BY_NAME
from matrix_selection import sampled

import nbmgpu
from nbmgpu.errors import StrategyError

VIEWED = [
    idiom("one loop", setup=ADAM),
    idiom("zeroed in place", TRAIN.replace("zero_grad()", "zero_grad(set_to_none=False)")),
    idiom("gradients kept from step to step", """
kept, parts, flat = [], [], []
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    kept.append(model.head.weight.grad)
    parts.append(model.body.weight.grad.detach()[0])
    flat.append(model.body.bias.grad.view(-1, 2))
    opt.step()
    losses.append(loss.item())
"""),
    idiom("gradients kept, and added to", """
kept = []
for x, y in loader:
    opt.zero_grad(set_to_none=False)
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    kept = kept or [model.head.weight.grad, model.body.weight.grad.detach()[0]]
    opt.step()
    losses.append(loss.item())
"""),
    idiom("one gradient kept", """
kept = []
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    kept = [model.body.weight.grad.detach()] if len(losses) == 2 else kept
    opt.step()
    losses.append(loss.item())
"""),
    idiom("gradients of the cell's own", """
own = torch.zeros_like(model.head.weight)
for x, y in loader:
    own.zero_()
    opt.zero_grad()
    model.head.weight.grad = own
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""),
    idiom("parameters used in some steps", CHANGING, setup=SOMETIMES),
    idiom("a group added", TRAIN + """
extra = nn.Linear(4, 4)
opt.add_param_group({"params": extra.parameters()})
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(extra(model(x)), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
"""),
    idiom("a second-order step", """
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    first = [p.grad.norm().item() for p in model.parameters()]
    F.cross_entropy(model(x), y).backward()
    losses.append(loss.item())
    opt.step()
"""),
    idiom("a reentrant checkpoint",
        with_loss("F.cross_entropy(checkpoint(model, x.requires_grad_(), use_reentrant=True), y)"),
        setup="from torch.utils.checkpoint import checkpoint\n"),
    *(BY_NAME[name] for name in (
        "batches of odd size", "accumulation, a shorter last group", "SGD on a sparse embedding",
    )),
]  # fmt: skip


@pytest.mark.parametrize("case", VIEWED, ids=str)
def test_gradients_that_are_views_have_the_same_values(case: Idiom) -> None:
    assert_equal(case, bucket_views=True)


def test_views_share_a_storage_on_ranks_and_none_in_the_notebook() -> None:
    cell = (
        TRAIN + "memories = len({p.grad.untyped_storage().data_ptr() for p in model.parameters()})"
    )
    for views, count in ((True, 1), (False, 4)):
        namespace = notebook()
        run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, bucket_views=views)
        assert [values["memories"] for values in run.results.values()] == [count, count]
        grads = [p.grad for p in namespace["model"].parameters()]
        assert len({g.untyped_storage().data_ptr() for g in grads}) == 4


UNUSED = CHANGING.replace("len(losses) % 3 > 0", "False")
STATIC = [idiom("all used", setup=ADAM), idiom("some never used", UNUSED, setup=SOMETIMES)]


@pytest.mark.parametrize("case", STATIC, ids=str)
def test_a_static_graph_has_the_same_numbers(case: Idiom) -> None:
    assert_equal(case, static_graph=True)


CHANGES = {
    "used in some steps": (CHANGING, SOMETIMES, "other parameters than the first one"),
    "used on some ranks": (
        with_loss("F.cross_entropy(model(x, bool(x[0, 0] == X[0, 0])), y)"),
        SOMETIMES,
        "other parameters than another rank",
    ),
    "frozen in mid-training": (
        TRAIN.replace("    for x", "    model.body.requires_grad_(epoch == 0)\n    for x"),
        "",
        "frozen or unfrozen",
    ),
}


@pytest.mark.parametrize(("cell", "setup", "why"), CHANGES.values(), ids=CHANGES.keys())
def test_a_graph_that_is_not_static_is_refused(cell: str, setup: str, why: str) -> None:
    with pytest.raises(StrategyError, match=why):
        nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, static_graph=True, exact="never")


COMPRESSED = [
    ("bf16", "ddp"), ("fp16", "zero1"), ("fp16", "views"),
    ("fp16", "ddp"), ("bf16", "zero1"), ("bf16", "views"),
]  # fmt: skip


@pytest.mark.parametrize(("compress", "by"), sampled(sorted(COMPRESSED), 2, "nbmgpu/strategies"))
def test_compressed_gradients_are_close_and_noticed(compress: str, by: str) -> None:
    more = {"bucket_views": True} if by == "views" else {"strategy": by}
    start = dict(notebook()["model"].state_dict())
    result = run_both(TRAIN, compress=compress, **more)
    moved = difference(start, dict(result.alone["model"].state_dict()))
    assert 0 < result.difference() <= 1e-2 * moved
    assert "half precision" in result.run.view.notices["compress"].text
    assert result.alone["losses"] == pytest.approx(result.ranks["losses"], rel=1e-2)


def test_find_unused_changes_nothing_and_is_noticed() -> None:
    case = idiom("unused", CHANGING, setup=SOMETIMES)
    assert_equal(case, notices="find-unused", find_unused=True)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_the_options_can_be_combined(strategy: str) -> None:
    clipped = TRAIN.replace("opt.step()", f"{CLIP}; opt.step()")
    one = run_both(clipped, ADAM, strategy=strategy)
    options = {"bucket_views": True, "static_graph": True, "clip": 0.1, "accumulate": 1}
    two = run_both(TRAIN, ADAM, strategy=strategy, alone=(clipped, ADAM), **options)
    assert max(one.difference(), two.difference()) <= 1e-6
    for a, b in zip(one.ranks["model"].parameters(), two.ranks["model"].parameters(), strict=True):
        assert torch.equal(a, b)
