"""The random states that travel with a cell and come back."""

from __future__ import annotations

import pytest
import torch
from idioms.notebook import notebook

import nbmgpu
from nbmgpu.environment import gpu_generator, random_state


@pytest.fixture(autouse=True)
def _kept() -> object:
    with random_state.kept():
        yield


def test_a_gpu_has_the_seed_of_the_cpu() -> None:
    torch.manual_seed(2**63 + 5)
    assert torch.equal(gpu_generator.get_state(), gpu_generator.state_of_seed(2**63 + 5))


def test_a_state_comes_after_an_earlier_seed_and_before_a_later_one() -> None:
    """torch itself lets seeds win over states while CUDA is not initialized."""
    state = gpu_generator.state_of_seed(11)
    torch.manual_seed(3)
    gpu_generator.set_state(state)
    assert torch.equal(gpu_generator.get_state(), state)
    torch.manual_seed(3)
    assert torch.equal(gpu_generator.get_state(), gpu_generator.state_of_seed(3))


def test_states_are_compared_and_kept() -> None:
    before = random_state.capture()
    with random_state.kept():
        gpu_generator.set_state(gpu_generator.state_of_seed(11))
        assert random_state.capture() != before
    assert random_state.capture() == before


def test_nothing_is_queued_that_does_not_change_the_state() -> None:
    torch.manual_seed(3)
    queued = torch.cuda._lazy_seed_tracker.get_calls()
    gpu_generator.set_state(gpu_generator.state_of_seed(3))
    assert torch.cuda._lazy_seed_tracker.get_calls() == queued


def test_ranks_go_on_from_the_state_of_the_notebook_and_it_from_theirs() -> None:
    names = notebook()
    gpu_generator.set_state(gpu_generator.state_of_seed(11))
    cell = """
from nbmgpu.environment import gpu_generator
found = gpu_generator.get_state()
for x, y in loader:
    F.cross_entropy(model(x), y).backward()
gpu_generator.set_state(gpu_generator.state_of_seed(12))
"""
    nbmgpu.run(cell, names, gpus=2, cpu=True)
    assert torch.equal(names["found"], gpu_generator.state_of_seed(11))
    assert torch.equal(gpu_generator.get_state(), gpu_generator.state_of_seed(12))
