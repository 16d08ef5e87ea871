"""Progress bars and the estimated remaining time."""

import time

import pytest

from nbmgpu.report.epoch_count import epochs_in
from nbmgpu.report.progress import bars, remaining


def test_finished_and_surplus_bars_are_not_shown(staged):
    run = staged(1)
    run.progress(5, 0, label="train", epoch=2)
    run.progress(5, 5, key="old", label="old", epoch=0, done=True)
    for name in "abcd":
        run.progress(1, 4, key=name, label=name, epoch=0)
    found = bars(run.polled().view)
    assert [bar.label for bar in found] == ["epoch 2 · train", "b", "c", "d"]
    assert (found[0].count, found[0].fraction) == ("5", -1)


def remaining_of(run, *updates):
    """Return the remaining time after bar updates of (seconds ago, key, step, total)."""
    now = time.time()
    for ago, key, step, total in updates:
        run.progress_at(now - ago, step, total, key=key)
    return remaining(run.polled().view, now)


def test_remaining_time_of_the_epoch_from_the_loader(staged):
    text = remaining_of(staged(1), (20, "loader", 0, 100), (0, "loader", 50, 100))
    assert text == "about 20 s left in epoch 1"


def test_remaining_time_of_the_run_from_the_outermost_bar(staged):
    text = remaining_of(
        staged(1),
        (40, "tqdm:0", 0, 10), (10, "tqdm:0", 1, 10),
        (10, "loader", 0, 100), (0, "loader", 100, 200),
    )  # fmt: skip
    assert text == "about 3:46 left"  # 1.5 of 10 took 40 s


def test_no_estimate_without_bars_or_at_the_start(staged):
    assert remaining(staged(1).polled().view, time.time()) == ""
    assert remaining_of(staged(1), (0.1, "loader", 1, 100)) == ""
    assert remaining_of(staged(1), (10, "loader", 1, 0), (0, "loader", 9, 0)) == ""


def test_the_estimate_restarts_with_each_epoch(staged):
    run = staged(1)
    now = time.time()
    for ago, step, epoch in [(100, 0, 1), (60, 90, 1), (20, 0, 2), (0, 10, 2)]:
        run.progress_at(now - ago, step, 100, epoch=epoch)
    assert remaining(run.polled().view, now) == "about 3:00 left in epoch 2"


def test_remaining_time_of_the_run_from_the_number_of_epochs(staged):
    run = staged(1)
    now = time.time()
    for ago, step, epoch in [(30, 0, 1), (20, 100, 1), (10, 0, 2), (0, 50, 2)]:
        run.progress_at(now - ago, step, 100, epoch=epoch)
    view = run.polled().view
    assert remaining(view, now, epochs=3) == "about 30 s left"  # 1.5 of 3 took 30 s
    assert bars(view, epochs=3)[0].label == "epoch 2 of 3"
    assert bars(view, epochs=1)[0].label == "epoch 2"


def test_a_bar_of_the_loader_is_not_an_outer_bar(staged):
    text = remaining_of(
        staged(1),
        (20, "tqdm:0", 0, 100), (20, "loader", 0, 100),
        (0, "tqdm:0", 50, 100), (0, "loader", 50, 100),
    )  # fmt: skip
    assert text == "about 20 s left in epoch 1"


@pytest.mark.parametrize(
    ("cell", "epochs"),
    [
        ("for e in range(10):\n    for x in loader:\n        pass", 10),
        ("n = 4\nfor e in range(n):\n    for x in loader:\n        pass", 4),
        ("n = 4\nn = 5\nfor e in range(n):\n    for x in loader:\n        pass", 0),
        ("for e in range(n):\n    for x in loader:\n        pass", 0),
        ("for e in range(2, 10):\n    for x in loader:\n        pass", 0),
        ("for i in range(10):\n    print(i)", 0),
        ("for e in tqdm(range(3)):\n    for x in loader:\n        pass", 0),
        ("!ls\nfor e in range(10):\n    for x in loader:\n        pass", 0),
        ("trainer.train()", 0),
    ],
)
def test_epochs_are_read_from_the_cell(cell, epochs):
    assert epochs_in(cell) == epochs
