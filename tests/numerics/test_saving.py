"""A cell that saves leaves one file, written once, with all that was trained."""

from __future__ import annotations

import pytest
import torch
from idiom import TRAIN, execute, notebook

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
    alone, namespace = notebook(""), notebook("")
    alone["PATH"], namespace["PATH"] = str(tmp_path / "alone.pt"), str(tmp_path / "ranks.pt")
    execute(SAVE, alone)
    nbmgpu.run(SAVE, namespace, gpus=2, cpu=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["alone.pt", "ranks.pt"]
    expected, saved = torch.load(alone["PATH"]), torch.load(namespace["PATH"])
    assert saved["epoch"] == expected["epoch"] == 1
    for key, value in expected["model"].items():
        torch.testing.assert_close(saved["model"][key], value, rtol=1e-5, atol=1e-6)


def test_a_checkpoint_of_the_cell_itself_is_resumed(tmp_path) -> None:
    alone, namespace = notebook(""), notebook("")
    alone["PATH"], namespace["PATH"] = str(tmp_path / "alone.pt"), str(tmp_path / "ranks.pt")
    execute(SAVE + RESUME, alone)
    nbmgpu.run(SAVE + RESUME, namespace, gpus=2, cpu=True)
    for mine, theirs in zip(
        alone["model"].parameters(), namespace["model"].parameters(), strict=True
    ):
        torch.testing.assert_close(theirs, mine, rtol=1e-5, atol=1e-6)


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


def test_what_was_just_saved_is_copied_and_read_by_all_ranks(tmp_path) -> None:
    namespace = notebook("")
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
    namespace = notebook("")
    namespace["PATH"] = str(tmp_path / "opt.pt")
    run = nbmgpu.run(WHOLE, namespace, gpus=2, cpu=True, strategy=strategy, timeout=60)
    assert [result["states"] for result in run.results.values()] == [4, 4]
