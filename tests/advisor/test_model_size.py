"""Measured sizes of optimizer states, compared with the states after a real step."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from nbmgpu.advisor.fsdp_units import measure_units
from nbmgpu.advisor.model_size import measure_model


def model():
    return nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Conv1d(1, 4, 3))


def state_bytes(optimizer):
    def nbytes(value):
        if isinstance(value, torch.Tensor):
            yield value.nbytes
        elif isinstance(value, dict):
            for inner in value.values():
                yield from nbytes(inner)

    return sum(nbytes(dict(optimizer.state)))


OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adafactor": torch.optim.Adafactor,
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True),
    "adagrad": torch.optim.Adagrad,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_predicted_states_match_the_states_after_a_step(name):
    made = model()
    optimizer = OPTIMIZERS[name](made.parameters())
    before = measure_model(made, optimizer)
    assert not before.states_assumed
    for parameter in made.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert before.all_states == state_bytes(optimizer)
    assert measure_model(made, optimizer).all_states == state_bytes(optimizer)


def test_measuring_changes_neither_optimizer_nor_random_states():
    made = model()
    optimizer = torch.optim.Adam(made.parameters())
    torch.manual_seed(3)
    random.seed(3)
    states = torch.get_rng_state(), random.getstate()
    measure_model(made, optimizer)
    assert not optimizer.state
    assert all(p.grad is None for p in made.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def test_frozen_parameters_have_no_gradients_and_no_states():
    made = model()
    made[0].requires_grad_(False)
    size = measure_model(made, torch.optim.Adam(made.parameters()))
    rest = size.elements - (40 * 30 + 30)
    assert size.trainable == rest
    assert size.gradients == 4 * rest
    assert size.parameters == 4 * size.elements
    assert len(size.states) == len(list(made.parameters())) - 2


def test_states_are_assumed_if_they_cannot_be_measured():
    made = model()
    size = measure_model(made, torch.optim.LBFGS(made.parameters()))
    assert size.states_assumed
    assert size.all_states == 8 * size.elements


def test_buffers_and_tied_weights_are_counted_once():
    made = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50, bias=False), nn.BatchNorm1d(50))
    made[1].weight = made[0].weight
    size = measure_model(made)
    assert size.elements == 50 * 8 + 100
    assert size.buffers == 4 * 100 + 8
    assert size.optimizer == "Adam"
    assert size.states_assumed


def test_unit_sizes_match_the_fsdp_wrap_policy():
    layers = nn.ModuleList(nn.Linear(300, 300) for _ in range(3))
    made = nn.Sequential(nn.Linear(10, 300), *layers)
    units = measure_units(made)
    size = 4 * (300 * 300 + 300)
    assert units.largest == size
    assert units.root == 4 * (10 * 300 + 300)
    assert units.sharded == 3 * size + units.root
    assert units.replicated == 0
