"""``--steps`` ends a cell after that many optimizer steps, with the state of one device."""

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


def max_difference(one, other):
    """Return the largest difference between the weights of two notebooks."""
    pairs = zip(one["model"].parameters(), other["model"].parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("ddp", 1), ("ddp", 2), ("zero1", 2), ("fsdp", 2), ("deepspeed_stage_2", 2)],
)
def test_weights_and_losses_match_one_device(strategy, ranks):
    expected, shared = trained(9), notebook()
    run = nbmgpu.run(TRAIN, shared, strategy=strategy, gpus=ranks, cpu=True, steps=9)
    assert run.state == "finished"
    assert len(shared["losses"]) == 9
    assert shared["losses"] == pytest.approx(expected["losses"], rel=1e-5)
    assert max_difference(expected, shared) < 1e-5
    assert shared["epoch"] == 1, "names are written back"
    assert [rank.measured.steps for rank in run.view.ranks] == [9] * ranks
    assert "ended after 9 optimizer steps" in run.view.notices["step-limit"].text


def test_an_incomplete_epoch_is_not_reported_as_unsharded():
    run = nbmgpu.run(TRAIN, notebook(), gpus=2, cpu=True, steps=3)
    assert set(run.view.notices) == {"devices", "step-limit"}


def test_every_step_except_the_first_is_measured():
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
def test_samples_are_counted_by_the_loader_and_not_by_batch_shapes(ranks):
    def features_first(samples):
        x, y = default_collate(samples)
        return x.T, y

    shared = notebook()
    shared["transposed"] = DataLoader(shared["data"], batch_size=8, collate_fn=features_first)
    cell = TRAIN.replace("in loader", "in transposed").replace("model(x)", "model(x.T)")
    run = nbmgpu.run(cell, shared, gpus=ranks, cpu=True, steps=7)
    assert run.view.ranks[0].measured.samples == [8, 8, 8, 8, 2, 8]


def test_accumulated_batches_count_as_one_step():
    shared = notebook()
    run = nbmgpu.run(TRAIN, shared, gpus=2, cpu=True, steps=2, accumulate=2)
    assert len(shared["losses"]) == 4
    assert run.view.ranks[1].measured.samples == [16]


def test_a_loop_without_a_loader_ends_before_the_next_backward_pass():
    shared = notebook()
    run = nbmgpu.run(NO_LOADER, shared, gpus=2, cpu=True, steps=3)
    assert run.state == "finished"
    assert len(shared["losses"]) == 3
    assert run.view.ranks[0].measured.samples == [0, 0]


def test_steps_of_several_optimizers_on_a_batch_count_once():
    shared = notebook()
    nbmgpu.run(TWO_OPTIMIZERS, shared, gpus=2, cpu=True, steps=3)
    assert len(shared["losses"]) == 3
    steps = {int(state["step"]) for state in shared["optimizer"].state.values()}
    assert steps == {3}, "also the second optimizer has stepped on the last batch"


def test_an_evaluation_after_the_last_step_is_completed():
    shared = notebook()
    nbmgpu.run(EVALUATION, shared, gpus=2, cpu=True, steps=7)
    assert len(shared["losses"]) == 7
    assert shared["seen"] == [8, 8, 8, 8, 8, 2] * 2


def test_a_cell_cannot_catch_the_step_limit():
    guarded = "try:\n" + TRAIN.replace("\n", "\n    ") + "\nexcept Exception:\n    caught = True\n"
    shared = notebook()
    nbmgpu.run(guarded, shared, gpus=2, cpu=True, steps=3)
    assert len(shared["losses"]) == 3
    assert "caught" not in shared


def test_a_cell_that_takes_fewer_steps_is_reported():
    shared = notebook()
    run = nbmgpu.run(TRAIN.replace("50", "1"), shared, gpus=2, cpu=True, steps=30)
    assert len(shared["losses"]) == 6
    assert run.view.notices["step-limit"].text.startswith(
        "The cell took 6 optimizer steps and ended"
    )


def test_without_the_option_nothing_is_measured():
    run = nbmgpu.run(TRAIN.replace("50", "1"), notebook(), gpus=1, cpu=True)
    assert run.view.ranks[0].measured is None
    assert "step-limit" not in run.view.notices
    assert "steps" not in run.view.progress


def test_random_numbers_after_the_cell_are_reproducible():
    """As after an interrupt, the notebook continues its own random stream."""
    draws = []
    for _ in range(2):
        shared = notebook(SETUP)
        nbmgpu.run(TRAIN, shared, gpus=2, cpu=True, steps=4)
        draws.append(torch.rand(3).tolist())
    assert draws[0] == draws[1]
