"""Trials on a GPU raise what the CPU raises, before a kernel asserts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from nbmgpu.strategies.host_checks import INDEXED, PROBABILITIES, _HostChecks, host_checks

ALLOWED = {
    "embedding": lambda: F.embedding(torch.tensor([0, 3]), torch.randn(4, 2)),
    "embedding_bag": lambda: F.embedding_bag(torch.tensor([[0, 3]]), torch.randn(4, 2)),
    "index": lambda: torch.randn(3, 4)[torch.tensor([0, -1])],
    "mask": lambda: torch.randn(2, 2)[torch.tensor([[True, False], [True, True]])],
    "index_put_": lambda: torch.randn(3, 4).index_put_((torch.tensor([0, 1]),), torch.ones(2, 4)),
    "index_select": lambda: torch.randn(5, 2).index_select(0, torch.tensor([0, 1])),
    "gather": lambda: torch.randn(2, 3).gather(1, torch.tensor([[2], [0]])),
    "scatter_": lambda: torch.randn(2, 3).scatter_(1, torch.tensor([[2], [0]]), 1.0),
    "scatter_add": lambda: torch.randn(2, 3).scatter_add(1, torch.tensor([[2]]), torch.ones(1, 1)),
    "take": lambda: torch.randn(5).take(torch.tensor([0, -1])),
    "cross_entropy": lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([0, 1, -100])),
    "binary_cross_entropy": lambda: F.binary_cross_entropy(torch.rand(3), torch.rand(3)),
    "bernoulli": lambda: torch.bernoulli(torch.rand(3)),
    "bernoulli_": lambda: torch.empty(3).bernoulli_(torch.rand(3)),
    "multinomial": lambda: torch.multinomial(torch.rand(3), 2),
    "repeat_interleave": lambda: torch.rand(3).repeat_interleave(torch.tensor([0, 1, 2])),
}

REFUSED = {
    "embedding": lambda: F.embedding(torch.tensor([0, 4]), torch.randn(4, 2)),
    "index": lambda: torch.randn(3, 4)[torch.tensor([0, 3])],
    "index_put_": lambda: torch.randn(3, 4).index_put_((torch.tensor([9]),), torch.ones(1, 4)),
    "scatter_": lambda: torch.randn(2, 3).scatter_(1, torch.tensor([[2], [3]]), 1.0),
    "cross_entropy": lambda: F.cross_entropy(torch.randn(3, 4), torch.tensor([0, 1, 7])),
    "binary_cross_entropy": lambda: F.binary_cross_entropy(torch.full((3,), -1.0), torch.rand(3)),
    "bernoulli": lambda: torch.bernoulli(torch.full((3,), float("nan"))),
    "multinomial": lambda: torch.multinomial(torch.full((3,), float("inf")), 2),
    "repeat_interleave": lambda: torch.rand(2).repeat_interleave(torch.tensor([0, -1])),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_checks_change_neither_results_nor_random_numbers(name: str) -> None:
    torch.manual_seed(0)
    expected, state = ALLOWED[name](), torch.get_rng_state()
    torch.manual_seed(0)
    with _HostChecks():
        assert torch.equal(ALLOWED[name](), expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", REFUSED)
def test_the_host_raises_first(name: str) -> None:
    called = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(func.overloadpacket)
            return func(*args, **(kwargs or {}))

    with Recorder(), pytest.raises((IndexError, RuntimeError)), _HostChecks():
        REFUSED[name]()
    assert len({*called} & (INDEXED | PROBABILITIES)) == 1, "that of the host"
    assert sum(packet in INDEXED | PROBABILITIES for packet in called) == 1


def test_an_index_of_many_rows_takes_no_memory_on_the_host() -> None:
    rows = torch.zeros(1, dtype=torch.float32).expand(1 << 34, 64)  # 4 TiB if it were copied
    with _HostChecks():
        assert F.embedding(torch.tensor([(1 << 34) - 1]), rows).shape == (1, 64)


def test_the_cpu_needs_no_checks() -> None:
    with host_checks([torch.ones(2), 1]) as checks:
        assert checks is None
