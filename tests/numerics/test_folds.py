"""Models that a cell trains one after the other: folds, trials of a search, episodes."""

from __future__ import annotations

import pytest
from idiom import compare, idiom, notebook

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
def test_those_that_are_dropped_are_freed(ranks: int) -> None:
    count = "alive.append(sum(isinstance(each, Net) for each in gc.get_objects()))"
    namespace = notebook("del model, opt")
    nbmgpu.run(FOLDS.format(after=count), namespace, gpus=ranks, cpu=True)
    assert max(namespace["alive"]) <= 2  # one of them while the next one takes its place


def test_those_that_are_dropped_are_freed_where_blocks_are_checkpointed() -> None:
    count = "alive.append(sum(isinstance(each, nn.Linear) for each in gc.get_objects()))"
    namespace = notebook(
        "del model, opt\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))\n"
        "        self.head = nn.Linear(8, 4)\n"
        "    def forward(self, x):\n"
        "        for block in self.blocks:\n"
        "            x = block(x).relu()\n"
        "        return self.head(x)\n"
    )
    nbmgpu.run(FOLDS.format(after=count), namespace, gpus=2, cpu=True, checkpointing=True)
    assert "no-blocks" not in nbmgpu.last_run.view.notices
    assert max(namespace["alive"]) <= 2 * 4


@pytest.mark.parametrize("ranks", [2, 3])
def test_those_that_are_kept_are_trained_on(ranks: int) -> None:
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
    result = compare(idiom("folds", FOLDS.format(after=again), curve=False), ranks)
    assert not result.wrong, "\n".join(result.wrong)
