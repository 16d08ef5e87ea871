"""``nbmgpu.share`` in a notebook, and what it refuses; ``idioms.tables.shared`` has the numbers."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch
from torch import nn

import nbmgpu
from nbmgpu.errors import OptionError

CELL = """
for i in range(0, 8, 4):
    for x in nbmgpu.share(X[i : i + 4]):
        seen.append(len(x))
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def notebook() -> dict[str, Any]:
    """Return the names that ``CELL`` reads."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "__name__": "__main__", "nbmgpu": nbmgpu, "X": torch.randn(8, 3), "model": model,
        "optimizer": optimizer, "seen": [],
    }  # fmt: skip


def test_a_notebook_gets_the_tensors_themselves() -> None:
    x, y = torch.ones(4, 2), torch.ones(3, 4)
    assert [part is x for part in nbmgpu.share(x)] == [True]
    ((first, second),) = nbmgpu.share(x.T, y, dim=-1)
    assert first.shape == (2, 4)
    assert second is y


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"x": [1.0, 2.0]}, TypeError, "got list"),
        ({"x": torch.ones(3), "y": torch.ones(4)}, ValueError, r"\[3, 4\] samples in dimension 0"),
        ({"x": torch.ones(0, 2)}, ValueError, r"\[0\] samples"),
        ({"x": torch.tensor(1.0)}, ValueError, r"a tensor of shape \(\)"),
        ({}, ValueError, "All need the same number"),
    ],
)
def test_what_is_no_batch_is_refused(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        nbmgpu.share(*arguments.values())


@pytest.mark.usefixtures("runs_folder")
def test_ranks_get_their_samples() -> None:
    names = notebook()
    nbmgpu.run(CELL, names, gpus=2, cpu=True, exact="never")
    assert names["seen"] == [2, 2]


@pytest.mark.usefixtures("runs_folder")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulate": 2}, "--accumulate 2 needs a DataLoader"),
        ({"batch": "per-rank"}, "--batch global"),
    ],
)
def test_options_about_the_batches_of_a_loader_are_refused(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        nbmgpu.run(CELL, notebook(), gpus=2, cpu=True, **options)


@pytest.mark.usefixtures("runs_folder")
def test_the_advice_has_the_names_of_the_cell() -> None:
    cell = CELL.replace("for x in nbmgpu.share(X[i : i + 4]):", "for _ in range(1):")
    cell = cell.replace("seen.append(len(x))", "rows = X[i : i + 4]").replace("(x)", "(rows)")
    run = nbmgpu.run(cell, notebook(), gpus=2, cpu=True)
    assert run is not None
    advice = "for rows in nbmgpu.share(rows):"
    assert advice in run.view.notices["not-sharded"].text


@pytest.mark.usefixtures("runs_folder")
def test_the_advice_has_only_tensors() -> None:
    cell = CELL.replace("for x in nbmgpu.share(X[i : i + 4]):", "for _ in range(1):")
    cell = cell.replace("seen.append(len(x))", "first = [i, 0][0]").replace(
        "model(x)", "model(X[first : first + 4])"
    )
    run = nbmgpu.run(cell.replace("STEP", "print(first)"), notebook(), gpus=2, cpu=True)
    assert run is not None
    text = run.view.notices["not-sharded"].text
    assert "`for a in nbmgpu.share(X[first:first + 4]):`" in text


STEP = "optimizer.zero_grad(); loss.backward(); optimizer.step()"

RESTARTS = {
    "a value of the last step": """
        centre = torch.zeros(1)
        for i in range(0, 8, 4):
            for x in nbmgpu.share(X[i : i + 4]):
                out = model(x)
                loss = (out - centre).square().mean()
                STEP
                centre = out.detach().mean(0)
        """,
    "the cell's own tensor is written to": """
        def train():
            data = X.clone()
            for i in (0, 2, 4):
                for x in nbmgpu.share(data[i : i + 4]):
                    x.mul_(0.5)
                    loss = model(x).square().mean()
                    STEP
        train()
        """,
    "counted after the loop": """
        count = 0
        for i in range(0, 8, 4):
            for x in nbmgpu.share(X[i : i + 4]):
                loss = model(x).square().mean()
                STEP
            count += len(x)
            seen.append(count)
        """,
    "read after the loop": """
        for i in range(0, 8, 4):
            for x in nbmgpu.share(X[i : i + 4]):
                out = model(x)
                loss = out.square().mean()
                STEP
            seen.append(out.mean().item())
        """,
    "scaled by a size after the loop": """
        for i in range(0, 8, 4):
            for x in nbmgpu.share(X[i : i + 4]):
                optimizer.zero_grad()
                model(x).square().mean().backward()
            for parameter in model.parameters():
                parameter.grad *= len(x) / 4
            optimizer.step()
        """,
}

for loss in ("model(rows).square().sum() / 9", "(model(x).sum() + model(rows).square().sum()) / 9"):
    RESTARTS[f"the whole batch in {loss}"] = f"""
        for i in range(0, 8, 4):
            rows = X[i : i + 4]
            for x in nbmgpu.share(rows):
                loss = {loss}
                STEP
        """

NO_RESTARTS = {
    "the same name": """
        for i in range(0, 8, 4):
            x = X[i : i + 4]
            for x in nbmgpu.share(x):
                loss = model(x).square().sum()
                STEP
        """,
    "another loop binds the names": """
        for i in range(0, 8, 4):
            for x in nbmgpu.share(X[i : i + 4]):
                loss = model(x).square().mean()
                STEP
            total = 0
            with torch.no_grad():
                for x in X.split(3):
                    total += model(x).mean().item() * len(x)
            seen.append(total)
        """,
}


@pytest.mark.usefixtures("runs_folder")
@pytest.mark.parametrize("name", [*RESTARTS, *NO_RESTARTS])
def test_what_a_shard_would_change_starts_again_with_whole_batches(name: str) -> None:
    cell = textwrap.dedent((RESTARTS | NO_RESTARTS)[name]).replace("STEP", STEP)
    alone, ranks = notebook(), notebook()
    ranks["model"].load_state_dict(alone["model"].state_dict())
    ranks["X"].copy_(alone["X"])
    exec(cell, alone | {"torch": torch})
    run = nbmgpu.run(cell, ranks | {"torch": torch}, gpus=2, cpu=True)
    assert run is not None
    assert ("restarted" in run.view.notices) == (name in RESTARTS)
    torch.testing.assert_close(ranks["model"].weight, alone["model"].weight, atol=1e-6, rtol=0)
    assert ranks["seen"] == pytest.approx(alone["seen"], abs=1e-6)
