"""How a loss reduces over samples, read from its graph."""

import pytest
import torch
import torch.nn.functional as F

from nbmgpu.rank.loss.autograd_nodes import CUSTOM
from nbmgpu.rank.loss.graph_reader import read_graph
from nbmgpu.rank.loss.readable_losses import find_readable_losses
from nbmgpu.rank.loss.reductions import VIEW_OPS
from nbmgpu.strategies.fsdp.fsdp_param import GatherFull
from nbmgpu.strategies.sharding.collectives import GatherParts

torch.manual_seed(0)
MODEL = torch.nn.Linear(4, 3)
X = torch.randn(8, 4)
Y = torch.randint(0, 3, (8,))
IGNORING = torch.where(torch.arange(8) < 3, -100, Y)
MASK = (torch.arange(8) > 0).float()


def penalty():
    return 0.01 * sum((p**2).sum() for p in MODEL.parameters())


CASES = {
    "cross entropy": (lambda: F.cross_entropy(MODEL(X), Y), "mean", [8]),
    "ignored targets": (lambda: F.cross_entropy(MODEL(X), IGNORING), "mean", [5]),
    "summed": (lambda: F.cross_entropy(MODEL(X), Y, reduction="sum"), "sum", []),
    "with a penalty": (lambda: F.cross_entropy(MODEL(X), Y) + penalty(), "mean", [8]),
    "summed with a penalty": (lambda: (MODEL(X) ** 2).sum() + penalty(), "sum", []),
    "mse": (lambda: F.mse_loss(MODEL(X), X[:, :3]), "mean", []),
    "l1": (lambda: F.l1_loss(MODEL(X), X[:, :3]), "mean", []),
    "binary": (lambda: F.binary_cross_entropy_with_logits(MODEL(X)[:, 0], MASK), "mean", []),
    "divided mean": (lambda: (MODEL(X) ** 2).mean() / 4, "mean", []),
    "sum over own count": (lambda: (MODEL(X) ** 2).sum() / len(X), "mean", [8]),
    "sum over the global batch": (lambda: (MODEL(X) ** 2).sum() / 16, "sum", []),
    "masked mean": (lambda: (MODEL(X).sum(1) * MASK).sum() / MASK.sum(), "mean", [7]),
    "smoothed": (lambda: F.cross_entropy(MODEL(X), Y, label_smoothing=0.1), "mean", [8, 8]),
    "smoothed, ignoring": (
        lambda: F.cross_entropy(MODEL(X), IGNORING, label_smoothing=0.1), "mean", [5, 5],
    ),
    "batchmean": (
        lambda: F.kl_div(F.log_softmax(MODEL(X), -1), X[:, :3].softmax(-1), reduction="batchmean"),
        "mean", [8],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "reduction", "counts"), CASES.values(), ids=CASES.keys())
def test_reduction_and_counts(make, reduction, counts):
    graph = read_graph(make(), samples=8, global_samples=16)
    assert graph.reduction == reduction
    assert [float(count) for count, _ in graph.counts] == counts
    assert not graph.needs_different_weights()


MIXED = {
    "mean and sum": lambda: F.mse_loss(MODEL(X), X[:, :3]) + MODEL(X).sum(),
    "ignoring and mean": lambda: (
        F.cross_entropy(MODEL(X), IGNORING) + F.mse_loss(MODEL(X), X[:, :3])
    ),
    "two different counts": lambda: (
        F.cross_entropy(MODEL(X), IGNORING) + F.cross_entropy(MODEL(X), Y)
    ),
}


@pytest.mark.parametrize("make", MIXED.values(), ids=MIXED.keys())
def test_terms_with_different_counts_need_different_weights(make):
    assert read_graph(make(), samples=8, global_samples=16).needs_different_weights()


def test_equal_means_need_no_different_weights():
    loss = F.cross_entropy(MODEL(X), Y) + F.mse_loss(MODEL(X), X[:, :3])
    assert not read_graph(loss, samples=8, global_samples=16).needs_different_weights()


def test_a_bias_free_layer_is_not_a_penalty():
    layer = torch.nn.Linear(4, 1, bias=False)
    assert read_graph(layer(X).sum(), samples=8, global_samples=16).reduction == "sum"


def test_the_variable_nearest_to_the_root_is_logged():
    real, fake = F.mse_loss(MODEL(X), X[:, :3]), MODEL(X).mean()
    total = real + fake
    scaled = total * 1024
    variables = {"fake": fake, "total": total, "other": MODEL(X).sum(), "x": X, "n": 3}
    found = find_readable_losses(scaled, read_graph(scaled, 8, 16), variables)
    assert found.name == "total"
    assert found.logged is total
    assert [id(t) for t in found.tensors] == [id(scaled), id(total), id(fake)]


def test_a_loss_without_variable_is_named_loss():
    loss = MODEL(X).mean()
    assert find_readable_losses(loss, read_graph(loss, 8, 16), {}).name == "loss"


TOTAL = torch.tensor(20.0)


@pytest.mark.parametrize(
    ("divisor", "reduction"),
    [(TOTAL, "sum"), (TOTAL * 3, "sum"), (torch.tensor(7.0), "mean"), (TOTAL.clone(), "sum")],
    ids=["the total", "a multiple of it", "a count of the shard", "a copy of it"],
)
def test_a_sum_over_a_count_of_all_ranks_adds_up(divisor, reduction):
    loss = (MODEL(X) ** 2).sum() / divisor
    assert read_graph(loss, 8, 16, [TOTAL]).reduction == reduction


def test_means_over_the_same_elements_and_their_classes_need_no_different_weights():
    out = MODEL(X) ** 2
    count = MASK.sum()
    loss = (out[:, 0] * MASK).sum() / count + (out * MASK[:, None]).sum() / (count * 3)
    assert not read_graph(loss, 8, 16).needs_different_weights()


@pytest.mark.parametrize(
    ("loss", "unknown_function"),
    [
        (lambda: torch.var_mean(MODEL(X))[0], "VarMean"),
        (lambda: MODEL(X).cumsum(0)[-1, 0] * 2, "Select"),
        (penalty, ""),
        (lambda: MODEL(X).pow(2).sum() / 7, ""),
        (lambda: F.cross_entropy(MODEL(X), Y), ""),
    ],
)
def test_an_unknown_reduction_is_named(loss, unknown_function):
    assert read_graph(loss(), 8, 16).unknown_function == unknown_function


@pytest.mark.parametrize("function", [GatherFull, GatherParts])
def test_gathered_parameters_are_views(function: type) -> None:
    """The names of autograd functions of strategies, which the reader compares."""
    assert f"{CUSTOM}{function.__name__}" in VIEW_OPS
