"""``--steps``: a cell ends after so many optimizer steps, with what one device has by then."""

from __future__ import annotations

import pytest
import torch
from cells import SETUP, TRAIN, notebook, trained
from torch.utils.data import DataLoader, default_collate

import nbmgpu

NO_LOADER = """
x, y = data.tensors
for step in range(100):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
TWO_OPTIMIZERS = """
critic = nn.Linear(16, 1)
second = torch.optim.SGD(critic.parameters(), lr=0.1)
for epoch in range(50):
    for x, y in loader:
        second.zero_grad()
        critic(x).mean().backward()
        second.step()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
EVALUATION = """
seen = []
for epoch in range(50):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == 7:
            with torch.no_grad():
                seen += [len(x) for x, y in loader]
                for x, y in loader:
                    seen.append(len(x))
"""


def gap(one, other):
    """The largest difference between the weights of two notebooks."""
    pairs = zip(one["model"].parameters(), other["model"].parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("ddp", 1), ("ddp", 2), ("zero1", 2), ("fsdp", 2), ("deepspeed_stage_2", 2)],
)
def test_weights_and_lists_are_those_of_one_device_after_as_many_steps(strategy, ranks):
    alone, shared = trained(9), notebook()
    run = nbmgpu.run(TRAIN, shared, strategy=strategy, gpus=ranks, cpu=True, steps=9)
    assert run.state == "finished"
    assert len(shared["losses"]) == 9
    assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    assert gap(alone, shared) < 1e-5
    assert shared["epoch"] == 1, "names come back as usual"
    assert [rank.measured.steps for rank in run.view.ranks] == [9] * ranks
    assert "ended after 9 optimizer steps" in run.view.notices["steps"].text


def test_a_pass_that_is_cut_off_was_split_all_the_same():
    run = nbmgpu.run(TRAIN, notebook(), gpus=2, cpu=True, steps=3)
    assert set(run.view.notices) == {"devices", "steps"}


def test_what_was_measured_is_of_every_step_but_the_first():
    shared = notebook()
    run = nbmgpu.run(TRAIN, shared, gpus=2, cpu=True, steps=7)
    for rank in run.view.ranks:
        assert len(rank.measured.seconds) == 6
        assert all(0 < seconds < 60 for seconds in rank.measured.seconds)
        assert rank.measured.samples == [8, 8, 8, 8, 2, 8]
        parameters = sum(p.numel() for p in shared["model"].parameters())
        # Adam: parameters, gradients, two states; ddp's buckets; random states and the last batch.
        assert 20 * parameters <= rank.measured.held <= 20 * parameters + 8192
        assert rank.measured.memory > 16 * parameters
        assert rank.measured.gpu_memory == -1


@pytest.mark.parametrize("ranks", [1, 2])
def test_samples_are_the_loaders_whatever_its_batches_look_like(ranks):
    def features_first(samples):
        x, y = default_collate(samples)
        return x.T, y

    shared = notebook()
    shared["turned"] = DataLoader(shared["data"], batch_size=8, collate_fn=features_first)
    cell = TRAIN.replace("in loader", "in turned").replace("model(x)", "model(x.T)")
    run = nbmgpu.run(cell, shared, gpus=ranks, cpu=True, steps=7)
    assert run.view.ranks[0].measured.samples == [8, 8, 8, 8, 2, 8]


def test_a_step_that_is_accumulated_counts_once():
    shared = notebook()
    run = nbmgpu.run(TRAIN, shared, gpus=2, cpu=True, steps=2, accumulate=2)
    assert len(shared["losses"]) == 4
    assert run.view.ranks[1].measured.samples == [16]


def test_a_loop_without_a_loader_ends_before_its_next_backward_pass():
    shared = notebook()
    run = nbmgpu.run(NO_LOADER, shared, gpus=2, cpu=True, steps=3)
    assert run.state == "finished"
    assert len(shared["losses"]) == 3
    assert run.view.ranks[0].measured.samples == [0, 0]


def test_optimizers_that_step_on_the_same_batch_take_one_step():
    shared = notebook()
    nbmgpu.run(TWO_OPTIMIZERS, shared, gpus=2, cpu=True, steps=3)
    assert len(shared["losses"]) == 3
    steps = {int(state["step"]) for state in shared["optimizer"].state.values()}
    assert steps == {3}, "the second optimizer of the last batch has had its turn"


def test_an_evaluation_after_the_last_step_goes_on_to_its_end():
    shared = notebook()
    nbmgpu.run(EVALUATION, shared, gpus=2, cpu=True, steps=7)
    assert len(shared["losses"]) == 7
    assert shared["seen"] == [8, 8, 8, 8, 8, 2] * 2


def test_a_cell_cannot_catch_its_end():
    guarded = "try:\n" + TRAIN.replace("\n", "\n    ") + "\nexcept Exception:\n    caught = True\n"
    shared = notebook()
    nbmgpu.run(guarded, shared, gpus=2, cpu=True, steps=3)
    assert len(shared["losses"]) == 3
    assert "caught" not in shared


def test_a_cell_that_ends_before_says_so():
    shared = notebook()
    run = nbmgpu.run(TRAIN.replace("50", "1"), shared, gpus=2, cpu=True, steps=30)
    assert len(shared["losses"]) == 6
    assert run.view.notices["steps"].text.startswith("The cell took 6 optimizer steps and ended")


def test_without_the_option_nothing_is_measured():
    run = nbmgpu.run(TRAIN.replace("50", "1"), notebook(), gpus=1, cpu=True)
    assert run.view.ranks[0].measured is None
    assert "steps" not in run.view.notices
    assert "steps" not in run.view.progress


def test_the_random_stream_goes_on_where_the_cell_ended():
    """Whatever comes next draws what it draws after an interrupt: the notebook's own stream."""
    draws = []
    for _ in range(2):
        shared = notebook(SETUP)
        nbmgpu.run(TRAIN, shared, gpus=2, cpu=True, steps=4)
        draws.append(torch.rand(3).tolist())
    assert draws[0] == draws[1]
