"""Losses side by side in one tensor, as a rank reads them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nbmgpu.rank.loss.graph_reader import read_graph

LINKS = 1500
"""More than Python calls may be within one another."""

model = nn.Linear(8, 4)
X, Y = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])


def grown(count: int) -> Tensor:
    losses = torch.empty(0)
    for n in range(count):
        losses = torch.cat([losses, F.cross_entropy((n + 1) * model(X), Y).view(1)])
    return losses


@pytest.mark.parametrize("count", [2, 3, LINKS])
def test_a_tensor_that_grows_by_a_loss_has_terms(count: int) -> None:
    graph = read_graph(grown(count).sum(), samples=4, whole=8)
    assert graph.reduction == "mean"
    assert graph.reductions == count or graph.unread  # of so many it is told that they are not read


def test_a_tensor_that_grows_by_outputs_has_none() -> None:
    outputs = torch.empty(4, 0)
    for _ in range(LINKS):
        outputs = torch.cat([outputs, model(X)], 1)
    graph = read_graph(outputs.pow(2).mean(), samples=4, whole=8)
    assert graph.kinds == {"mean"}
    assert graph.reductions == 1


@pytest.mark.parametrize("samples", [1, 2])
def test_a_number_written_through_a_view_of_it(samples: int) -> None:
    number = torch.zeros(())
    number.view(1)[0] = F.cross_entropy(model(X[:samples]), Y[:samples])
    graph = read_graph(number.unsqueeze(0).mean(), samples=samples, whole=4)
    assert graph.reductions == 1


@pytest.mark.parametrize(
    ("shape", "reduction"), [((4,), "sum"), ((4, 1), "sum"), ((1, 4), "sum"), ((2, 2), "mean")]
)
def test_as_many_losses_as_samples_are_told_by_what_the_model_was_given(
    shape: tuple[int, ...], reduction: str
) -> None:
    """A single sample's classes, (4,), are as many as the samples; (2, 2) has them in another way.

    That of (2, 2), flattened, is over all samples.
    """
    terms = torch.zeros(4)
    for n in range(4):
        given = X[n] if reduction == "sum" else X
        terms[n] = model(given).pow(2).mean()
    graph = read_graph(terms.view(shape).sum(), samples=4, whole=8)
    assert graph.reduction == reduction
