"""Fake steps: what they measure, and that they have no side effects."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from nbmgpu.advisor.fake_step import FakeStepError, run_fake_step
from nbmgpu.advisor.forward_pass import batch_size
from nbmgpu.advisor.sample_batch import NoBatchError, batch_from_loader

BATCH = torch.zeros(16, 20), torch.zeros(16, dtype=torch.long)


class Blocks(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(20, 80), nn.Tanh(), nn.Linear(80, 20)) for _ in range(count)
        )
        self.head = nn.Linear(20, 5)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def test_a_fake_step_changes_neither_model_nor_random_states():
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 5)).eval()
    model[0].weight.grad = torch.ones(8, 20)
    called = []
    model.register_forward_hook(lambda *_: called.append(1))
    model.register_forward_pre_hook(lambda *_: called.append(1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    run_fake_step(model, BATCH, 16)
    assert not model.training
    assert not called
    assert model[3].weight.grad is None
    assert torch.equal(model[0].weight.grad, torch.ones(8, 20))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert type(model[0].weight) is nn.Parameter
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


def test_a_linear_layer_matches_a_manual_count():
    model = nn.Linear(20, 5, bias=False)
    step = run_fake_step(model, torch.zeros(16, 20), 16)
    inputs, outputs = 16 * 20 * 4, 16 * 5 * 4
    assert step.samples == 16
    assert step.outputs == outputs
    assert inputs + outputs <= step.saved <= inputs + 4 * outputs + 64
    assert step.peak_with_gradients >= 5 * 20 * 4 + inputs  # the gradient exists at the end


def test_memory_grows_with_samples_and_shrinks_in_half_precision():
    model = Blocks(4)
    few, many = run_fake_step(model, BATCH, 100), run_fake_step(model, BATCH, 1000)
    assert many.saved == pytest.approx(10 * few.saved, rel=0.05)
    assert run_fake_step(model, BATCH, 1000, "bf16").saved < 0.8 * many.saved


def test_checkpointing_reduces_activations():
    whole = run_fake_step(Blocks(6), BATCH, 1000)
    less = run_fake_step(Blocks(6), BATCH, 1000, checkpointing=True)
    assert less.saved < 0.7 * whole.saved


def test_extrapolation_of_a_deep_stack_matches_all_layers(monkeypatch):
    extrapolated = run_fake_step(Blocks(20), BATCH, 1000)
    assert extrapolated.layers == 20
    monkeypatch.setattr("nbmgpu.advisor.fake_step.DEEP_STACK", 99)
    whole = run_fake_step(Blocks(20), BATCH, 1000)
    assert whole.layers == 0
    assert extrapolated.saved == pytest.approx(whole.saved, rel=0.01)
    assert extrapolated.peak == pytest.approx(whole.peak, rel=0.02)


def test_a_data_dependent_model_raises_an_error():
    class DataDependent(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (x.sum().item() > 0)

    with pytest.raises(FakeStepError, match="DataDependentOutput"):
        run_fake_step(DataDependent(20, 5), BATCH, 16)


def test_batch_size():
    assert batch_size({"ids": torch.zeros(3, 4)}) == 3
    assert batch_size((torch.zeros(()), torch.zeros(7))) == 7
    assert batch_size("nothing") == 1


def test_a_batch_from_a_loader_is_collated_without_iterating_it():
    data = torch.utils.data.TensorDataset(torch.arange(100.0), torch.arange(100))
    generator = torch.Generator().manual_seed(5)
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, generator=generator)
    states = torch.get_rng_state(), generator.get_state()
    (x, _), size = batch_from_loader(loader)
    assert size == 32
    assert 1 <= len(x) <= 8
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(generator.get_state(), states[1])


def test_a_stream_is_not_read():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            raise AssertionError("it was read")

    with pytest.raises(NoBatchError, match="stream"):
        batch_from_loader(torch.utils.data.DataLoader(Stream(), batch_size=4))
