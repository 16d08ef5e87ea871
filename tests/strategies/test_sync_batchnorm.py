"""``--sync-batchnorm``: the batch statistics of one device, and modules that keep their type."""

from __future__ import annotations

import pickle

import pytest
from idioms.comparison import assert_equal, run_both
from idioms.idiom import TRAIN, Idiom, idiom
from idioms.notebook import notebook
from idioms.sources import ACCUMULATE, BATCH_NORM, CLIP, CONV, with_loss
from matrix_selection import sampled
from torch import nn

import nbmgpu

UNEVEN = "loader = DataLoader(dataset, batch_size={})\n"
DOUBLE = """
model.double()
loader = DataLoader(TensorDataset(X.double(), Y), batch_size={})
"""
"""For batches so small that rounding errors grow, on one device too."""
SEVERAL = (2, 3)


def batch_norm(options: str) -> str:
    """Return ``BATCH_NORM`` with options of its layer."""
    return BATCH_NORM.replace("BatchNorm1d(12", f"BatchNorm1d(12, {options}")


NORMALIZED = [
    idiom("1d", setup=BATCH_NORM, ranks=SEVERAL),
    idiom("1d, uneven", setup=BATCH_NORM + DOUBLE.format(7), ranks=SEVERAL),
    idiom("slices of one sample", setup=BATCH_NORM + DOUBLE.format(3), rtol=1e-9),
    idiom("a last batch too small to split", setup=BATCH_NORM + UNEVEN.format(6), ranks=(3,)),
    idiom("no momentum", setup=batch_norm("momentum=None")),
    idiom("not affine", setup=batch_norm("affine=False")),
    idiom("no running statistics", setup=batch_norm("track_running_stats=False")),
    idiom("2d, a conv net", setup=CONV + UNEVEN.format(7), ranks=SEVERAL),
    # The gradient of a bias before it is rounding alone, which Adam would make large.
    idiom("2d, Adam", setup=CONV + "model[1].bias = model[4].bias = None\n"
        "opt = torch.optim.Adam(model.parameters(), lr=1e-2)\n"),
    idiom("3d", setup="""
        model = nn.Sequential(nn.Unflatten(1, (2, 2, 2, 1)), nn.BatchNorm3d(2),
            nn.Flatten(), nn.Linear(8, 4))
        opt = torch.optim.SGD(model.parameters(), lr=0.1)
        """),
    idiom("large means", setup=BATCH_NORM + """
X += 100
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 4))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
"""),
    idiom("evaluation in between", """
        scores = []
        for epoch in range(2):
            model.train()
            for x, y in loader:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                opt.step()
                losses.append(loss.item())
            model.eval()
            with torch.no_grad():
                scores.append(sum(F.cross_entropy(model(x), y).item() for x, y in val_loader))
        """, setup=CONV),
    idiom("a summed loss", with_loss("F.cross_entropy(model(x), y, reduction='sum') / 20"),
        setup=CONV),
    idiom("ignored targets", with_loss("F.cross_entropy(model(x), y, ignore_index=1)"),
        setup=CONV + UNEVEN.format(7)),
    idiom("accumulation in the cell", ACCUMULATE.format(clip=CLIP), setup=CONV),
    idiom("a gradient penalty", """
        for x, y in loader:
            x.requires_grad_()
            loss = F.cross_entropy(model(x), y, reduction="none")
            slope, = torch.autograd.grad(loss.sum(), x, create_graph=True)
            loss = loss.mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        """, rank_local="slope", setup=BATCH_NORM),
    idiom("two models", """
        for x, y in loader:
            for net, step in ((model, opt), (other, other_opt)):
                step.zero_grad()
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                step.step()
                losses.append(loss.item())
        """, setup=BATCH_NORM + """
other = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.GELU(), nn.Linear(5, 4))
other_opt = torch.optim.SGD(other.parameters(), lr=0.1)
"""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "ranks"),
    sampled(((case, ranks) for case in NORMALIZED for ranks in case.ranks), 2, "nbmgpu/strategies"),
)
def test_batch_statistics_equal_those_of_one_device(case: Idiom, ranks: int) -> None:
    result = assert_equal(case, ranks, notices="", sync_batchnorm=True)
    assert result.split()


def test_batch_statistics_with_sharded_optimizer_states() -> None:
    assert_equal(idiom("conv", setup=CONV), strategy="zero1", sync_batchnorm=True)


def test_a_padding_shard_does_not_count() -> None:
    setup = CONV + "X, Y = X[:40], Y[:40]\ndataset = TensorDataset(X, Y)\n"
    result = run_both(
        TRAIN,
        setup + UNEVEN.format(8),
        3,
        alone=(TRAIN, setup + UNEVEN.format(24)),
        batch="per-rank",
        sync_batchnorm=True,
    )
    assert result.difference() <= 1e-6


def test_a_class_with_its_own_forward_is_not_synchronized_and_noticed() -> None:
    setup = (
        BATCH_NORM
        + """
class Own(nn.BatchNorm1d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True)
model[1] = Own(12)
"""
    )
    run = nbmgpu.run(TRAIN, notebook(setup), gpus=2, cpu=True, exact="never", sync_batchnorm=True)
    assert "batch-norm" in run.view.notices


def test_layers_keep_their_type() -> None:
    namespace = notebook(CONV)
    layer = namespace["model"][2]
    cell = TRAIN + "import pickle\nkind, size = type(model[2]).__name__, len(pickle.dumps(model))\n"
    nbmgpu.run(cell, namespace, gpus=2, cpu=True, sync_batchnorm=True)
    assert namespace["model"][2] is layer
    assert (type(layer), namespace["kind"]) == (nn.BatchNorm2d, "BatchNorm2d")
    assert namespace["size"] == len(pickle.dumps(namespace["model"]))


def test_without_the_option_the_notice_names_it() -> None:
    run = nbmgpu.run(TRAIN, notebook(CONV), gpus=2, cpu=True, exact="never")
    assert "--sync-batchnorm" in run.view.notices["batch-norm"].text
