"""Ranks that are held, of a cell that starts again with whole batches."""

from __future__ import annotations

import pytest
import torch
from held_notebook import EVALUATE, TOLERANCE, TRAIN, notebook, run
from torch import nn

import nbmgpu

pytestmark = pytest.mark.usefixtures("released")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2"])
def test_cells_with_dropout_have_the_numbers_of_one_device(strategy: str) -> None:
    expected, names = notebook(), notebook()
    for each in (expected, names):
        each["model"].insert(2, nn.Dropout(0.3))
    torch.manual_seed(2)
    for source in (TRAIN, EVALUATE, TRAIN):
        exec(source, expected)
    torch.manual_seed(2)
    first = run(TRAIN, names, strategy=strategy, gpus=2, hold=True)
    assert "whole batches" in first.view.notices["restarted"].text
    run(EVALUATE, names)
    again = run(TRAIN, names)
    assert not {"restarted", "random-draws"} & again.view.notices.keys()
    nbmgpu.release()
    torch.testing.assert_close(names["losses"], expected["losses"], **TOLERANCE)
    torch.testing.assert_close(names["total"], expected["total"], **TOLERANCE)
    states = [each["model"].state_dict() for each in (names, expected)]
    torch.testing.assert_close(*states, **TOLERANCE)


def test_a_later_cell_does_not_start_again() -> None:
    names = notebook()
    run(TRAIN, names, strategy="ddp", gpus=2, hold=True)
    names["noise"] = nn.Dropout(0.3)
    later = run(TRAIN.replace("model(x)", "model(noise(x))"), names)
    (text,) = [n.text for n in later.view.notices.values() if "random" in n.text]
    assert "does not start again by itself, as it runs in ranks that have run other cells" in text
