"""Losses that are scaled by a size in a module beside the notebook, or in an installed package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from idioms.comparison import assert_equal, compare_whole_batches
from idioms.idiom import Idiom, idiom
from idioms.sources import with_loss

LOSSES = """
import torch
import torch.nn.functional as F

def summed(out, y):
    return F.cross_entropy(out, y, reduction="sum") / len(y)

def mean_by_size(out, y):
    return F.cross_entropy(out, y) / len(y)

def by_given(out, y, n):
    return F.cross_entropy(out, y) / n

def by_four(out, y):
    assert len(y)
    return F.cross_entropy(out, y, reduction="sum") / 4

def by_elements(out, y):
    return (out - F.one_hot(y, out.shape[1])).square().mean() / out.numel()

class Keeps:
    def __call__(self, out, y):
        self.n = len(y)
        return F.cross_entropy(out, y) / self.n

by_attribute, LOSSES = Keeps(), {"mean": mean_by_size}

class Loss(torch.nn.Module):
    def forward(self, out, y):
        return self.mean_of(out, y)

    def mean_of(self, out, y):
        n = y.shape[0]
        return F.cross_entropy(out, y) / n

def make_loss():
    def loss(out, y):
        return mean_by_size(out, y)
    return loss
"""

RESTARTING = {
    "a mean by the size": "sized_losses.mean_by_size(model(x), y)",
    "by a size that is given": "sized_losses.by_given(model(x), y, len(y))",
    "by a literal that equals the size": "sized_losses.by_four(model(x), y)",
    "by the number of elements": "sized_losses.by_elements(model(x), y)",
    "by an attribute": "sized_losses.by_attribute(model(x), y)",
    "in a function of a dict": "sized_losses.LOSSES['mean'](model(x), y)",
    "in a method": "criterion(model(x), y)",
    "in a closure": "closure(model(x), y)",
}

SETUP = """
loader = DataLoader(TensorDataset(X[:32], Y[:32]), batch_size=8)
import sized_losses
samples_of_a_shard = 4
criterion, closure = sized_losses.Loss(), sized_losses.make_loss()
"""


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    (folder / "sized_losses.py").write_text(LOSSES)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "sized_losses", raising=False)


def assert_restarts(loss: str) -> None:
    cell = idiom("a loss of a module", with_loss(loss), setup=SETUP, curve=False)
    again = compare_whole_batches(cell, exact="auto")
    again.assert_equal()
    assert again.notices == {"restarted"}
    assert "ambiguous-size" in compare_whole_batches(cell, exact="never").notices


@pytest.mark.parametrize("loss", RESTARTING.values(), ids=list(RESTARTING))
def test_modules_beside_the_notebook_are_read(
    loss: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path / "beside", monkeypatch)
    assert_restarts(loss)


def test_losses_of_packages_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path / "site-packages", monkeypatch)
    assert_restarts("criterion(model(x), y)")


def test_a_sum_by_the_size_stays_on_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_module(tmp_path / "beside", monkeypatch)
    cell = idiom("a sum", with_loss("sized_losses.summed(model(x), y)"), setup=SETUP)
    assert_equal(cell, notices="", exact="auto")


MEANS = ["F.cross_entropy(model(x), y)", "(model(x) ** 2).mean()"]


def in_batches(loss: str, batch: int) -> Idiom:
    """A loss in a loop over ``batch`` samples at once; ``settings[0]`` is the samples of a rank."""
    setup = f"""
        loader = DataLoader(TensorDataset(X[:42], Y[:42]), batch_size={batch})
        settings = [float({batch} // 2)]
    """
    return idiom("a factor", with_loss(loss), setup=setup, curve=False)


@pytest.mark.parametrize("batch", [2, 3, 7])
@pytest.mark.parametrize("mean", MEANS)
def test_ranks_agree_whether_a_factor_is_a_size(mean: str, batch: int) -> None:
    assert_equal(in_batches(f"settings[0] * {mean}", batch), notices="", exact="auto")
    if batch > 2:  # with one sample per rank, such cells restart
        assert_equal(in_batches(f"len(x) * {mean} / 40", batch), notices="", exact="auto")


@pytest.mark.parametrize("factor", ["settings[0]", "{'weight': 4.0}['weight']"])
def test_a_factor_of_unknown_origin_that_equals_the_shard_restarts(factor: str) -> None:
    again = compare_whole_batches(in_batches(f"{factor} * {MEANS[0]}", 8), exact="auto")
    again.assert_equal()
    assert again.notices == {"restarted"}


@pytest.mark.parametrize("batch", [7, 8])
@pytest.mark.parametrize("mean", MEANS)
def test_a_size_and_a_literal_that_cancel_out_restart(mean: str, batch: int) -> None:
    again = compare_whole_batches(in_batches(f"len(x) * {mean} / 4", batch), exact="auto")
    again.assert_equal()
    assert again.notices == {"restarted"}
