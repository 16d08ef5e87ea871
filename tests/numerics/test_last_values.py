"""What a step leaves of its batch is one device's after the run."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import pytest
import torch
from idioms.idiom import TRAIN
from idioms.notebook import notebook
from idioms.whole_batch import train

import nbmgpu

KEPT = """
        out = model(x)
        predicted, masked = out.argmax(1), torch.where(out > 0, out, 0.0)
        flipped, tokens = out.T, out[:, None].expand(-1, 3, -1).reshape(-1, 4)
        made = {"out": out, "pair": (out.sum(1), 7)}
        picked = out[0]
"""


@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("ddp", 3), ("fsdp", 2)])
def test_what_has_all_samples_is_joined(strategy: str, ranks: int) -> None:
    alone, names = notebook(), notebook()
    exec(TRAIN + KEPT, alone)
    run = nbmgpu.run(TRAIN + KEPT, names, gpus=ranks, cpu=True, exact="never", strategy=strategy)
    for name in ("x", "y", "out", "predicted", "masked", "flipped", "tokens"):
        torch.testing.assert_close(names[name], alone[name].detach())
    total, seven = names["made"]["pair"]
    torch.testing.assert_close(total, alone["made"]["pair"][0].detach())
    assert seven == 7
    text = run.view.notices["rank-0-values"].text
    assert text.startswith("`picked`: "), "what is picked by position"


EVALUATION = """
with torch.no_grad():
    for xv, yv in DataLoader(TensorDataset(X[:8], Y[:8]), 4):
        {}
"""


@pytest.mark.parametrize(
    "cell",
    [
        TRAIN.replace("model(x)", "(out := model(x))") + EVALUATION.format("out = model(xv)"),
        TRAIN + "        out = model(x)\n" + EVALUATION.format("out = model(xv)"),
        EVALUATION.format("out = model(xv)") + TRAIN,
        TRAIN + "        out = model(x)\n        if len(losses) % 2 == 0:\n"
        "            with torch.no_grad():\n                out = model(X[:4])\n",
        TRAIN + "        out = model(x)\nout = model(X[:4]).detach()\n",
    ],
)
def test_what_comes_of_whole_batches_stays_as_it_is(cell: str) -> None:
    """Their batches have as many samples as a shard of the training batches."""
    alone, names = notebook(), notebook()
    exec(cell, alone)
    nbmgpu.run(cell, names, gpus=2, cpu=True, exact="never")
    assert len(alone["out"]) == 4
    torch.testing.assert_close(names["out"], alone["out"].detach())


@pytest.mark.parametrize(
    "rows",
    [
        "torch.arange(len(x)) * out[:, 0]",
        "2 * (out[:, 0] - torch.linspace(0, 1, len(x))).T",
        "torch.where(torch.arange(len(x))[:, None] > 1, out, -out)",
        "out / len(x)",
        "out * (1 / x.shape[0])",
        "out.argsort(0).argsort(0)",
        "out * torch.full((len(x), 1), 1 / len(x))",
    ],
)
def test_rows_that_depend_on_their_shard_are_named(rows: str) -> None:
    cell = TRAIN + f"        out = model(x).detach()\n        rows = {rows}\n"
    run = nbmgpu.run(cell, notebook(), gpus=2, cpu=True, exact="never")
    assert run.view.notices["rank-0-values"].text.startswith("`rows`: ")


def test_a_batch_that_is_shared_along_another_dimension_is_joined_along_it() -> None:
    """Its first dimension has as many elements as the part has samples."""
    cell = """
for columns in X.reshape(-1, 4, 8):
    for part in nbmgpu.share(columns, dim=1):
        opt.zero_grad()
        loss = (part.T @ torch.ones(4, 8) @ model.weight.T).pow(2).mean()
        loss.backward()
        opt.step()
"""
    alone, names = notebook(), notebook()
    for namespace in (alone, names):
        namespace |= {"model": torch.nn.Linear(8, 4), "nbmgpu": nbmgpu}
        torch.nn.init.ones_(namespace["model"].weight)
        namespace["opt"] = torch.optim.SGD(namespace["model"].parameters(), lr=0.01)
    exec(cell, alone)
    nbmgpu.run(cell, names, gpus=2, cpu=True, exact="never")
    torch.testing.assert_close(names["part"], alone["part"])
    torch.testing.assert_close(names["loss"], alone["loss"].detach())


def test_large_values_that_differ_between_ranks_are_named() -> None:
    cell = TRAIN + "        if len(losses) == 1:\n            wide = x.repeat(1, 10_000)\n"
    cell += "equal = X.repeat(1, 1_000)\n"
    run = nbmgpu.run(cell, notebook(), gpus=2, cpu=True, exact="never")
    assert run.view.notices["rank-0-values"].text.startswith("`wide`: ")


AFTER = f"""
{train("F.cross_entropy(out, y)", "out = model(x)")}
    accuracies.append((out.argmax(1) == y).float().mean().item())
    print(len(x), tuple(out.shape))
largest = model(x).max(0).values.detach()
"""


@pytest.mark.parametrize("exact", ["never", "auto"])
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("ddp", 3), ("fsdp", 2)])
def test_after_a_loop_the_last_batch_is_whole(strategy: str, ranks: int, exact: str) -> None:
    """So what is computed and printed there is one device's, without whole batches in steps."""
    alone, names = notebook("accuracies = []"), notebook("accuracies = []")
    with redirect_stdout(io.StringIO()) as printed:
        exec(AFTER, alone)
    run = nbmgpu.run(AFTER, names, gpus=ranks, cpu=True, exact=exact, strategy=strategy)
    assert names["accuracies"] == alone["accuracies"]
    torch.testing.assert_close(names["largest"], alone["largest"])
    for name in ("x", "y", "out"):
        torch.testing.assert_close(names[name], alone[name].detach())
    assert [run.log(rank) for rank in range(ranks)] == [printed.getvalue()] * ranks
    assert not run.view.notices.keys() - {"devices"}


def test_where_the_cell_leaves_its_loop_the_last_batch_is_a_part() -> None:
    """As a rank may leave it alone, ranks do not wait for one another there."""
    cell = TRAIN.replace("for epoch in range(2):", "if True:")
    cell += "        if len(losses) == 3:\n            break\nsize = len(x)\n"
    names = notebook()
    run = nbmgpu.run(cell, names, gpus=2, cpu=True, exact="never")
    assert names["size"] == 4
    assert len(names["x"]) == 8, "joined at the end"
    assert "rank-0-values" not in run.view.notices, "ranks agree"


def test_the_batch_before_the_last_is_whole() -> None:
    """A loop over zip() may have drawn a batch that it does not bind."""
    step = "opt.zero_grad(); F.cross_entropy(model(x), y).backward(); opt.step()"
    cell = (
        f"for (x, y), _ in zip(loader, range(5)):\n    {step}\n"
        f"for u, v in loader:\n    before, last = locals().get('last'), u\n"
    )
    alone, names = notebook(), notebook()
    exec(cell, alone)
    nbmgpu.run(cell, names, gpus=2, cpu=True, exact="never")
    for name in ("x", "y", "u", "before"):
        torch.testing.assert_close(names[name], alone[name])


def test_after_a_failure_a_part_of_the_batch_is_said_to_be_one() -> None:
    names = notebook()
    cell = f"{TRAIN}        if len(losses) == 3:\n            raise ValueError('bad batch')\n"
    with pytest.raises(ValueError, match="bad batch"):
        nbmgpu.run(cell, names, gpus=2, cpu=True)
    assert len(names["x"]) == 4
    run = nbmgpu.last_run
    assert run is not None
    text = run.view.notices["part-of-batch-left"].text
    assert text.startswith("`x`, `y`: rank 0's part of the last batch")
