"""A cell that saves leaves one file, written once, with all that was trained."""

from __future__ import annotations

import pytest
import torch
from idioms.comparison import run_both
from idioms.differences import difference
from idioms.idiom import TRAIN
from idioms.notebook import notebook

import nbmgpu

SAVE = (
    TRAIN
    + """
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, PATH)
"""
)
RESUME = (
    """
checkpoint = torch.load(PATH)
model.load_state_dict(checkpoint["model"])
opt.load_state_dict(checkpoint["opt"])
"""
    + TRAIN
)


def test_torch_save_writes_one_file_that_loads(tmp_path) -> None:
    run_both(SAVE, 'PATH = "model.pt"', folder=tmp_path)
    alone, ranks = tmp_path / "alone", tmp_path / "ranks"
    assert [p.name for p in ranks.iterdir()] == ["model.pt"]
    expected, saved = torch.load(alone / "model.pt"), torch.load(ranks / "model.pt")
    assert saved["epoch"] == expected["epoch"] == 1
    assert difference(expected["model"], saved["model"]) <= 1e-6
    assert difference(expected["opt"], saved["opt"]) <= 1e-6


def test_a_checkpoint_of_the_cell_itself_is_resumed(tmp_path) -> None:
    result = run_both(SAVE + RESUME, 'PATH = "model.pt"', folder=tmp_path)
    assert result.difference() <= 1e-6


BEST = """
import shutil
for epoch in range(3):
    for x, y in loader:
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()
    torch.save(model.state_dict(), PATH)
    shutil.copyfile(PATH, PATH + ".best")
    size = len(open(PATH, "rb").read())
"""


def test_all_ranks_copy_and_read_what_was_just_saved(tmp_path) -> None:
    namespace = notebook()
    namespace["PATH"] = str(tmp_path / "model.pt")
    nbmgpu.run(BEST, namespace, gpus=3, cpu=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pt", "model.pt.best"]
    assert namespace["size"] == (tmp_path / "model.pt.best").stat().st_size


WHOLE = """
for x, y in loader:
    opt.zero_grad()
    F.cross_entropy(model(x), y).backward()
    opt.step()
torch.save(opt, PATH)
torch.save({"opt": opt, "model": model}, PATH + ".both")
states = len(torch.load(PATH, weights_only=False).state_dict()["state"])
"""


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "fsdp", "deepspeed_stage_1"])
def test_an_optimizer_is_saved_as_a_whole(tmp_path, strategy) -> None:
    namespace = notebook()
    namespace["PATH"] = str(tmp_path / "opt.pt")
    run = nbmgpu.run(WHOLE, namespace, gpus=2, cpu=True, strategy=strategy, timeout=60)
    assert [result["states"] for result in run.results.values()] == [4, 4]
