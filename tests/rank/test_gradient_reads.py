"""Reads of gradients of tensors that are not parameters."""

import pytest

from nbmgpu.rank.source_analysis.gradient_reads import cell_reads_gradients

READ = [
    "near = x + 0.1 * x.grad",
    "step = delta.grad / delta.grad.norm()",
    "g = x.grad.data",
    "z.data -= lr * z.grad",
    "show(self.noise.grad)",
]
NOT_READ = [
    "near = x + 0.1 * x.grad.sign()",
    "near = x + 0.1 * torch.sign(x.grad)",
    "x.grad.zero_()",
    "x.grad = None",
    "if x.grad is not None: pass",
    "g, = torch.autograd.grad(y, x)",
    "g, = ag.grad(y, x)",
    "norms = [p.grad.norm() for p in model.parameters()]",
    "for name, p in model.named_parameters():\n    log(name, p.grad)",
    "for p in group['params']:\n    p.data -= p.grad",
    "ps = list(model.parameters())\nfor p in ps:\n    log(p.grad)",
    "kept = [p for p in filter(lambda p: p.grad is not None, all_of_them)]",
    "params[0].grad.norm()",
    "model.head.weight.grad.norm()",
]


@pytest.mark.parametrize("cell", READ)
def test_gradients_of_data_are_detected(cell: str) -> None:
    assert cell_reads_gradients(cell)


@pytest.mark.parametrize("cell", NOT_READ)
def test_gradients_of_parameters_and_their_signs_are_ignored(cell: str) -> None:
    assert not cell_reads_gradients(cell)
