"""``--batch per-rank`` and ``--seed``: other batches and seeds than those of one device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from idioms.comparison import assert_equal, run_both
from idioms.idiom import TRAIN, idiom
from idioms.notebook import execute, notebook
from idioms.sources import AUGMENTED

import nbmgpu

SHUFFLED = "loader = DataLoader(dataset, batch_size={}, shuffle=True)"
SCHEDULED = TRAIN.replace("opt.step()", "opt.step(); sched.step()")
SCHEDULE = "\nsched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, epochs=2, steps_per_epoch={})"


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_batch_per_rank_is_one_device_with_the_larger_batch(ranks: int) -> None:
    larger = SHUFFLED.format(4 * ranks)
    result = run_both(TRAIN, SHUFFLED.format(4), ranks, alone=(TRAIN, larger), batch="per-rank")
    assert result.ranks["losses"] == pytest.approx(result.alone["losses"], rel=1e-5)
    assert result.difference() <= 1e-6
    assert result.run.record.batch_line == f"global batch {4 * ranks} = {ranks} ranks x 4"


def test_schedules_see_the_shorter_epoch_of_a_batch_per_rank() -> None:
    cell = SCHEDULE.format("len(loader)") + SCHEDULED
    larger = SHUFFLED.format(8)
    result = run_both(cell, SHUFFLED.format(4), alone=(cell, larger), batch="per-rank")
    alone, ranks = result.alone, result.ranks
    assert len(ranks["losses"]) == len(alone["losses"])
    assert ranks["sched"].get_last_lr() == pytest.approx(alone["sched"].get_last_lr())
    assert ranks["losses"] == pytest.approx(alone["losses"], rel=1e-5)


def test_a_seed_equals_seeding_in_the_cells_first_line() -> None:
    cell = "model = Net()\nopt = torch.optim.SGD(model.parameters(), lr=0.1)\n" + TRAIN
    seeding = "import numpy\nrandom.seed(5); numpy.random.seed(5); torch.manual_seed(5)\n"
    setup = SHUFFLED.format(8)
    result = run_both(
        cell, setup + "\ntorch.manual_seed(99)", alone=(seeding + cell, setup), seed=5
    )
    assert result.ranks["losses"] == pytest.approx(result.alone["losses"], rel=1e-5)


def test_without_a_seed_the_notebooks_random_state_continues() -> None:
    first = notebook(SHUFFLED.format(8))
    nbmgpu.run(TRAIN, first, gpus=2, cpu=True)
    after = torch.rand(3)
    second = notebook(SHUFFLED.format(8))
    execute(TRAIN, second)
    assert torch.equal(after, torch.rand(3))


def test_two_runs_equal_one_longer_run() -> None:
    result = assert_equal(idiom("first", setup=SHUFFLED.format(8)))
    state = torch.get_rng_state()
    nbmgpu.run(TRAIN, result.ranks, gpus=2, cpu=True)
    torch.set_rng_state(state)
    execute(TRAIN, result.alone)
    assert result.ranks["losses"] == pytest.approx(result.alone["losses"], rel=1e-5)


SHUFFLING = """
class Shuffled(Sampler):
    def __len__(self):
        return 44
    def __iter__(self):
        order = list(range(44))
        random.shuffle(order)
        np.random.shuffle(order)
        yield from order

loader = DataLoader(Noisy(), batch_size=8, sampler=Shuffled())
"""
"""A sampler that draws from Python's and NumPy's generators."""

COINS = """
coins, orders = [], []
for epoch in range(2):
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
        noise = x - X[0]
        coins.append(random.random())
    random.shuffle(order := list(range(9)))
    orders.append((order, np.random.rand()))
"""


DRAWS = {
    "python": "random.random()",
    "numpy": "np.random.rand()",
    "both": "random.random() + np.random.rand()",
    "from the second epoch on": "(random.random() if epoch else 0)",
}


@pytest.mark.parametrize("draws", DRAWS.values(), ids=DRAWS.keys())
@pytest.mark.parametrize("batch_size", [7, 8])  # seven batches of uneven shards, or six
def test_random_numbers_of_the_cell_do_not_depend_on_those_of_samples(
    draws: str, batch_size: int
) -> None:
    setup = f"{AUGMENTED.format(noise=draws)}loader = DataLoader(Noisy(), batch_size={batch_size})"
    run = nbmgpu.run(COINS, notebook("X[:] = 0\n" + setup), gpus=3, cpu=True, exact="never")
    ours, *others = (run.results[rank] for rank in range(3))
    assert "random-data" in run.view.notices
    assert len(ours["coins"]) == 2 * len(range(0, 44, batch_size))
    assert ours["orders"][0] != ours["orders"][1]
    for theirs in others:
        assert theirs["coins"] == ours["coins"]
        assert theirs["orders"] == ours["orders"]
        assert theirs["noise"].flatten()[0] != ours["noise"].flatten()[0]


def test_samples_draw_other_numbers_in_each_epoch_although_torch_is_seeded() -> None:
    cell = COINS.replace("range(2):", "range(2):\n    torch.manual_seed(0)")
    cell = cell.replace("coins.append(random.random())", "coins.append((x - X[0])[0, 0].item())")
    setup = "X[:] = 0\n" + AUGMENTED.format(noise="np.random.rand()")
    run = nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, exact="never")
    for rank in range(2):
        first, second = np.split(np.array(run.results[rank]["coins"]), 2)
        assert not set(first) & set(second)


@pytest.mark.parametrize("epochs", [1, 2])
def test_random_numbers_of_samplers_do_not_depend_on_those_of_samples(epochs: int) -> None:
    cell = TRAIN.replace("range(2)", f"range({epochs})")
    quiet, noisy = (
        AUGMENTED.format(noise=draws) + SHUFFLING
        for draws in ("0", "0 * (random.random() + np.random.rand())")
    )
    result = run_both(cell, noisy, alone=(cell, quiet))
    assert result.ranks["losses"] == pytest.approx(result.alone["losses"], rel=1e-5)


def test_dropout_masks_differ_between_ranks() -> None:
    cell = (
        """
for x, y in DataLoader(TensorDataset(torch.ones(8, 6)), batch_size=8):
    pass
""".replace("x, y", "(x,)")
        + """
seen = None
for (x,) in loader:
    out = F.dropout(x, 0.5)
    seen = out.clone() if seen is None else seen
    (model(out) ** 2).mean().backward()
    opt.step()
"""
    )
    setup = "loader = DataLoader(TensorDataset(torch.ones(32, 8)), batch_size=8)"
    run = nbmgpu.run(cell, notebook(setup), gpus=2, cpu=True, exact="never")
    assert not torch.equal(run.results[0]["seen"], run.results[1]["seen"])
