"""Models that a cell trains one after the other: folds, trials of a search, episodes."""

from __future__ import annotations

import pytest
from idioms.comparison import assert_equal
from idioms.idiom import idiom
from idioms.notebook import notebook
from idioms.sources import BLOCKS

import nbmgpu

FOLDS = """
import gc
alive, kept = [], []
for fold in range(5):
    model = Net()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.9)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    scheduler.step()
    {after}
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_dropped_models_are_freed(ranks: int) -> None:
    count = "alive.append(sum(isinstance(each, Net) for each in gc.get_objects()))"
    namespace = notebook("del model, opt")
    nbmgpu.run(FOLDS.format(after=count), namespace, gpus=ranks, cpu=True)
    assert max(namespace["alive"]) <= 2  # one of them while the next one takes its place


def test_dropped_models_with_checkpointed_blocks_are_freed() -> None:
    count = "alive.append(sum(isinstance(each, Deep) for each in gc.get_objects()))"
    namespace = notebook(BLOCKS + "del model, opt\nNet = Deep\n")
    nbmgpu.run(FOLDS.format(after=count), namespace, gpus=2, cpu=True, checkpointing=True)
    assert "no-checkpoint-blocks" not in nbmgpu.last_run.view.notices
    assert max(namespace["alive"]) <= 2


@pytest.mark.parametrize("ranks", [2, 3])
def test_kept_models_continue_training(ranks: int) -> None:
    again = """kept.append((model, opt))
    for model, opt in kept:
        for x, y in val_loader:
            loss = F.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
    if fold == 2:
        del kept[0]
"""
    assert_equal(idiom("folds", FOLDS.format(after=again), curve=False), ranks)
