"""A batch of one sample per rank: sizes are 1, so more cells start again with whole batches."""

from __future__ import annotations

import pytest
from idioms import sequences
from idioms.comparison import assert_equal, compare_whole_batches
from idioms.idiom import TRAIN, idiom
from idioms.sources import step, with_loss

FEW = "loader = DataLoader(TensorDataset(X[:10], Y[:10]), batch_size=2)"

RESTARTING = {
    "losses added up": (
        with_loss("sum(F.cross_entropy(model(a[None]), b[None]) for a, b in zip(x, y))"),
        "one-sample",
    ),
    "a mean by the size": (with_loss("F.cross_entropy(model(x), y) / len(x)"), "one-sample"),
    "halves": (
        with_loss("sum(F.cross_entropy(model(a), b) for a, b in zip(x.chunk(2), y.chunk(2))) / 2"),
        "one-sample",
    ),
    "a vector": (
        step("loss = F.cross_entropy(model(x), y, reduction='none').sum()").replace(
            "loss.backward()",
            "F.cross_entropy(model(x), y, reduction='none').backward(torch.ones(len(x)))",
        ),
        "one-sample",
    ),
    "a contrastive loss": (
        with_loss("F.cross_entropy(model(x) @ model(x + 0.1).T, torch.arange(len(x)))"),
        "cross-sample",
    ),
    "messages": (
        with_loss("F.cross_entropy(model(x + torch.zeros_like(x).index_add_("
                  "0, torch.arange(len(x)).roll(1), x)), y)"),
        "cross-sample",
    ),
    "hits counted": (
        "hits = 0\n" + TRAIN + "        hits += (model(x).argmax(1) == y).sum().item()\n",
        "local-value-read",
    ),
    "different counts": (
        with_loss("F.cross_entropy(model(x), y) + F.cross_entropy(model(x), y, ignore_index=0)"),
        "mixed-loss",
    ),
    "a term over chosen samples": (
        with_loss("F.cross_entropy(model(x), y) + F.cross_entropy(model(x)[y > 1], y[y > 1])"),
        "mixed-loss",
    ),
    "the first of the batch": (with_loss("F.cross_entropy(model(x)[:1], y[:1])"), "one-sample"),
    "the last by a list": (with_loss("F.cross_entropy(model(x)[[-1]], y[[-1]])"), "one-sample"),
    "one of the samples": (
        with_loss("F.cross_entropy(model(x), y) + model(x)[0].mean()"),
        "one-sample",
    ),
    "a sum beside fixed points": (
        with_loss("F.cross_entropy(model(x), y, reduction='sum') + model(X[20:25]).pow(2).sum()"),
        "sum-with-fixed-term",
    ),
}  # fmt: skip
"""Cells, and the topic of the notice that they are given on shards."""

STAYING = {
    "columns": with_loss("F.cross_entropy(model(x)[:, [0, 1, 2, 3]][..., :4], y[:])"),
    "the probability of each target": with_loss(
        "-model(x).log_softmax(1)[torch.arange(len(y)), y].mean()"
    ),
    "a look at the first": TRAIN + "    shown = x[0]\n",
    "a mean": TRAIN,
    "squeezed columns": with_loss("F.mse_loss(model(x)[:, :1].squeeze(1), y.float() / 10)"),
    "accumulation": TRAIN.replace("loss.backward()", "(loss / 4).backward()"),
}


@pytest.mark.parametrize(("cell", "topic"), RESTARTING.values(), ids=RESTARTING)
def test_cells_that_one_sample_does_not_decide(cell: str, topic: str) -> None:
    one = idiom("one sample per rank", cell, setup=FEW, curve=False)
    again = compare_whole_batches(one, exact="auto")
    again.assert_equal()
    assert "restarted" in again.notices
    assert topic in compare_whole_batches(one, exact="never").notices


@pytest.mark.parametrize("cell", STAYING.values(), ids=STAYING)
def test_usual_cells_stay_on_shards(cell: str) -> None:
    assert_equal(idiom("one sample per rank", cell, setup=FEW), notices="", exact="auto")


@pytest.mark.parametrize("name", ["a GPT", "a Llama", "the sequence first", "padding", "an LSTM"])
def test_language_models_stay_on_shards(name: str) -> None:
    (cell,) = [each for each in sequences.CELLS if each.name == name]
    ranks = 4  # batches of 4 sequences
    assert_equal(cell, ranks, notices="", exact="auto")
