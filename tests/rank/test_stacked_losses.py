"""Several losses in one tensor, as read from the graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nbmgpu.rank.loss.graph_reader import read_graph

LINKS = 1500
"""More than Python's recursion limit."""

model = nn.Linear(8, 4)
X, Y = torch.randn(4, 8), torch.tensor([0, 1, 2, 3])


def concatenated(count: int) -> Tensor:
    losses = torch.empty(0)
    for n in range(count):
        losses = torch.cat([losses, F.cross_entropy((n + 1) * model(X), Y).view(1)])
    return losses


@pytest.mark.parametrize("count", [2, 3, LINKS])
def test_a_tensor_concatenated_from_losses_has_terms(count: int) -> None:
    graph = read_graph(concatenated(count).sum(), samples=4, global_samples=8)
    assert graph.reduction == "mean"
    # With too many losses, the graph is not read completely, and a notice says so.
    assert len(graph.terms) == count or graph.unknown_function


def test_a_tensor_concatenated_from_outputs_has_none() -> None:
    outputs = torch.empty(4, 0)
    for _ in range(LINKS):
        outputs = torch.cat([outputs, model(X)], 1)
    graph = read_graph(outputs.pow(2).mean(), samples=4, global_samples=8)
    assert graph.kinds == {"mean"}
    assert len(graph.terms) == 1


@pytest.mark.parametrize("samples", [1, 2])
def test_a_scalar_written_through_its_view(samples: int) -> None:
    number = torch.zeros(())
    number.view(1)[0] = F.cross_entropy(model(X[:samples]), Y[:samples])
    graph = read_graph(number.unsqueeze(0).mean(), samples=samples, global_samples=4)
    assert len(graph.terms) == 1


@pytest.mark.parametrize(
    ("shape", "reduction"), [((4,), "sum"), ((4, 1), "sum"), ((1, 4), "sum"), ((2, 2), "mean")]
)
def test_losses_of_tasks_and_samples_are_distinguished_by_the_input_of_the_model(
    shape: tuple[int, ...], reduction: str
) -> None:
    """A shape of (4,) could be four tasks or four samples; (2, 2) cannot be samples."""
    terms = torch.zeros(4)
    for n in range(4):
        given = X[n] if reduction == "sum" else X
        terms[n] = model(given).pow(2).mean()
    graph = read_graph(terms.view(shape).sum(), samples=4, global_samples=8)
    assert graph.reduction == reduction
