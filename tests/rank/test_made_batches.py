"""Which batches a cell makes itself."""

from __future__ import annotations

import textwrap

import pytest
import torch
from torch.nn.functional import cross_entropy

from nbmgpu.rank.source_analysis.made_batches import made_batches, unnamed_batches


def get_batch() -> None:
    """Stand for a function of the notebook."""


@pytest.mark.parametrize(
    ("names", "cell"),
    [
        (["x", "y"], """
            for i in range(0, 64, 8):
                x, y = X[i:i + 8], Y[i:i + 8]
                loss = loss_fn(model(x), y)
                loss.backward()
            """),
        (["xb", "yb"], """
            for epoch in range(3):
                order = torch.randperm(64)
                for i in range(0, 64, 8):
                    index = order[i:i + 8]
                    xb = X[index].to(device)
                    yb = Y[index]
                    out = model(xb)
                    loss = cross_entropy(out, yb)
                    loss.backward()
                    print(loss)
            """),
        (["inputs", "targets"], """
            while step < 10:
                inputs, targets = get_batch()
                _, loss = model(inputs, targets)
                loss.backward()
            """),
        (["x"], """
            for _ in range(10):
                x = torch.stack([data[i:i + 8] for i in starts])
                model(x).mean().backward()
            """),
        ([], """
            for i in range(0, 64, 8):
                loss_fn(model(X[i:i + 8]), Y[i:i + 8]).backward()
            """),
        (["xb", "yb"], """
            for _ in range(10):
                xb, yb = get_batch()
                logits = model(xb)
                loss = cross_entropy(logits.view(-1, 4), yb.view(-1))
                loss.backward()
            """),
        ([], "loss = model(X).mean()\nloss.backward()"),
        ([], "%time model(X).backward()"),
    ],
)  # fmt: skip
def test_names_of_batches(names: list[str], cell: str) -> None:
    model = torch.nn.Linear(1, 1)
    namespace = {"get_batch": get_batch, "cross_entropy": cross_entropy, "model": model}
    assert made_batches(textwrap.dedent(cell), namespace) == names


@pytest.mark.parametrize(
    ("batches", "cell"),
    [
        (["X[i:i + 8]", "Y[i:i + 8]"], """
            for i in range(0, 64, 8):
                loss_fn(model(X[i:i + 8]), Y[i:i + 8]).backward()
            """),
        (["X[i:i + 8]"], """
            for i in range(0, 64, 8):
                out = model(X[i:i + 8])
                y = Y[i:i + 8]
                loss_fn(out, y).backward()
            """),
        (["X[ix]"], """
            while True:
                loss = model(X[ix], starts[0], X[3]).sum()
                loss.backward()
            """),
        ([], "loss_fn(model(X[i:i + 8]), Y[i:i + 8]).backward()"),
    ],
)  # fmt: skip
def test_batches_without_names(batches: list[str], cell: str) -> None:
    namespace = {"X": torch.ones(64, 4), "Y": torch.ones(64), "starts": [1]}
    assert unnamed_batches(textwrap.dedent(cell), namespace) == batches
