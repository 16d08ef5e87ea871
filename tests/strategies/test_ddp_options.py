"""ddp's own options: bucket views, static graphs, compression, and find_unused."""

from __future__ import annotations

import pytest
import torch
from numerics.idiom import TRAIN, compare, idiom, notebook

import nbmgpu
from nbmgpu.errors import StrategyError

ADAM = "opt = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
SOMETIMES = """
class Sometimes(Net):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(4, 4)
    def forward(self, x, more):
        out = super().forward(x)
        return self.extra(out) if more else out
model = Sometimes()
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""
CHANGING = TRAIN.replace("model(x)", "model(x, len(losses) % 3 > 0)")

VIEWED = [
    idiom("one loop", setup=ADAM),
    idiom("zeroed in place", TRAIN.replace("zero_grad()", "zero_grad(set_to_none=False)")),
    idiom("uneven batches", setup="loader = DataLoader(dataset, batch_size=7)"),
    idiom("accumulation", """
for step, (x, y) in enumerate(loader):
    loss = F.cross_entropy(model(x), y) / 2
    loss.backward()
    losses.append(loss.item())
    if step % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        opt.step()
        opt.zero_grad()
"""),
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
    idiom("sparse gradients", """
for x, y in loader:
    opt.zero_grad()
    loss = F.cross_entropy(head(table(x).mean(1)), y)
    loss.backward()
    opt.step()
    losses.append(loss.item())
""", setup="""
words = torch.randint(20, (44, 5))
table, head = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 4)
opt = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
loader = DataLoader(TensorDataset(words, Y), batch_size=7)
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
]  # fmt: skip


@pytest.mark.parametrize("case", VIEWED, ids=str)
def test_gradients_that_are_views_have_the_same_values(case) -> None:
    result = compare(case, 2, bucket_views=True)
    assert not result.wrong, "\n".join(result.wrong)


def test_views_share_a_storage_on_ranks_and_none_in_the_notebook() -> None:
    cell = (
        TRAIN
        + """
memories = len({p.grad.untyped_storage().data_ptr() for p in model.parameters()})
"""
    )
    for views, count in ((True, 1), (False, 4)):
        namespace = notebook("")
        run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, bucket_views=views)
        assert [values["memories"] for values in run.results.values()] == [count, count]
        grads = [p.grad for p in namespace["model"].parameters()]
        assert len({g.untyped_storage().data_ptr() for g in grads}) == 4


def test_a_reentrant_checkpoint_with_views() -> None:
    setup = "from torch.utils.checkpoint import checkpoint\n"
    cell = TRAIN.replace("model(x)", "checkpoint(model, x.requires_grad_(), use_reentrant=True)")
    result = compare(idiom("reentrant", cell, setup=setup), 2, bucket_views=True)
    assert not result.wrong, "\n".join(result.wrong)


def test_a_static_graph_has_the_same_numbers() -> None:
    result = compare(idiom("static", setup=ADAM), 2, static_graph=True)
    assert not result.wrong, "\n".join(result.wrong)
    unused = CHANGING.replace("len(losses) % 3 > 0", "False")
    result = compare(idiom("static, unused", unused, setup=SOMETIMES), 2, static_graph=True)
    assert not result.wrong, "\n".join(result.wrong)


CHANGES = {
    "used in some steps": (CHANGING, SOMETIMES, "other parameters than the first one"),
    "used on some ranks": (
        TRAIN.replace("model(x)", "model(x, bool(x[0, 0] == X[0, 0]))"),
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
def test_a_graph_that_is_not_static_is_refused(cell, setup, why) -> None:
    with pytest.raises(StrategyError, match=why):
        nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, static_graph=True)


@pytest.mark.parametrize("more", [{}, {"bucket_views": True}, {"strategy": "zero1"}], ids=str)
@pytest.mark.parametrize("compress", ["bf16", "fp16"])
def test_compressed_gradients_are_close_and_noticed(compress, more) -> None:
    alone, shared = notebook(""), notebook("")
    start = torch.cat([p.detach().flatten().clone() for p in alone["model"].parameters()])
    exec(TRAIN, alone)
    run = nbmgpu.run(TRAIN, shared, gpus=2, cpu=True, compress=compress, **more)
    one, other = (
        torch.cat([p.detach().flatten() for p in n["model"].parameters()]) for n in (alone, shared)
    )
    gap, moved = (one - other).abs().max(), (one - start).abs().max()
    assert 0 < gap <= 1e-2 * moved
    assert "half precision" in run.view.notices["compress"].text
    assert alone["losses"] == pytest.approx(shared["losses"], rel=1e-2)


def test_find_unused_changes_nothing_and_is_noticed() -> None:
    result = compare(idiom("unused", CHANGING, setup=SOMETIMES), 2, find_unused=True)
    assert not result.wrong, "\n".join(result.wrong)
    assert result.notices - {"rank-0-values"} == {"find-unused"}


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_the_options_can_be_combined(strategy) -> None:
    options = {"bucket_views": True, "static_graph": True, "clip": 0.1, "accumulate": 1}
    case = idiom("together", TRAIN, setup=ADAM)
    alone = idiom(
        "together",
        TRAIN.replace(
            "opt.step()", "nn.utils.clip_grad_norm_(model.parameters(), 0.1); opt.step()"
        ),
        setup=ADAM,
    )
    one = compare(alone, 2, strategy=strategy)
    two = compare(case, 2, strategy=strategy, **options)
    for a, b in zip(one.ranks["model"].parameters(), two.ranks["model"].parameters(), strict=True):
        assert torch.equal(a, b)
