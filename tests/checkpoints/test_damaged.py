"""Damaged checkpoints: a resumed cell takes the one before, and errors name the file."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from interrupted import LOOP, notebook, run_until_it_fails

import nbmgpu
from nbmgpu.errors import CheckpointError
from nbmgpu.kernel.resumed_options import find_checkpoint, with_checkpoint
from nbmgpu.options.run_options import RunOptions
from nbmgpu.runs.checkpoint import DESCRIPTION, Checkpoint
from nbmgpu.runs.run import Run

CELL = LOOP + "# of test_damaged"
OPTIONS = {"gpus": 2, "cpu": True, "exact": "never"}


@pytest.fixture(scope="module")
def original(runs_folder) -> Run:
    """A run with checkpoints after steps 7 and 14."""
    run = run_until_it_fails(CELL, notebook(fail_at=18), checkpoint_every="7steps", **OPTIONS)
    assert [each.step for each in run.checkpoints] == [7, 14]
    return run


@pytest.fixture
def run(original, tmp_path):
    """The run; what a test damages is as before after it."""
    folder, copy = original.folder / "checkpoints", tmp_path / "checkpoints"
    shutil.copytree(folder, copy)
    yield original
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)


def change_description(folder: Path, **changes: object) -> None:
    path = folder / DESCRIPTION
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (fields | changes).items() if v != "missing"}))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def tensors_of(folder: Path) -> Path:
    return max(folder.glob("*.distcp"), key=lambda path: path.stat().st_size)


DAMAGES = {
    "truncated": lambda folder: truncate(folder / DESCRIPTION),
    "empty": lambda folder: (folder / DESCRIPTION).write_text(""),
    "another type": lambda folder: (folder / DESCRIPTION).write_text("[1, 2]"),
    "no text": lambda folder: (folder / DESCRIPTION).write_bytes(b"\xff\x00\xfe"),
    "a missing field": lambda folder: change_description(folder, levels="missing"),
    "a field of another type": lambda folder: change_description(folder, step="14"),
    "a loop of another type": lambda folder: change_description(
        folder, levels=[{"loop": None, "count": "1", "trained": []}]
    ),
    "no pickle": lambda folder: (folder / "values").unlink(),
    "no tensors": lambda folder: tensors_of(folder).unlink(),
    "half of the tensors": lambda folder: truncate(tensors_of(folder)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_is_left_out(run: Run, damage, monkeypatch) -> None:
    damaged = run.checkpoints[-1].folder
    damage(damaged)
    with pytest.warns(UserWarning, match="step-00000014 cannot be read"):
        assert [each.step for each in run.checkpoints] == [7]
    found = find_checkpoint("newest", CELL, "")
    assert found.checkpoint.step == 7
    (error,) = found.damaged
    assert re.search(r"'[\w.]+' of checkpoint step-00000014 cannot be read", str(error))
    assert f"--resume '{found.checkpoint.folder}'" in str(error)
    with pytest.raises(CheckpointError, match=re.escape(str(error))):
        find_checkpoint(str(damaged), CELL, "")
    damage(found.checkpoint.folder)
    with pytest.raises(CheckpointError, match=r"step-00000014[\s\S]*without --resume"):
        find_checkpoint(run.id, CELL, "")
    with pytest.raises(CheckpointError), pytest.warns(UserWarning, match="step-"):
        run.checkpoint(-1)


def test_a_resumed_cell_goes_on_at_the_one_before(run: Run) -> None:
    truncate(tensors_of(run.checkpoints[-1].folder))
    unbroken, resumed = notebook(), notebook()
    nbmgpu.run(CELL, unbroken, **OPTIONS)
    nbmgpu.run(CELL, resumed, resume=run.id, **OPTIONS)
    assert resumed["meter"].values == unbroken["meter"].values
    text = nbmgpu.last_run.view.notices["resumed"].text
    assert "Resumed after step 7" in text
    assert "of checkpoint step-00000014 cannot be read: it has" in text


def test_another_content_is_found_when_it_is_read(run: Run) -> None:
    """The rank that reads it names the file."""
    folder = run.checkpoints[-1].folder
    flip(tensors := tensors_of(folder))
    with pytest.raises(CheckpointError, match="checksum") as raised:
        nbmgpu.run(CELL, notebook(), resume=run.id, **OPTIONS)
    assert re.match(r"\nRank [01] of 2 raised CheckpointError", str(raised.value.__cause__))
    assert str(tensors) in str(raised.value)
    assert f"--resume '{run.checkpoints[0].folder}'" in str(raised.value)
    with pytest.raises(CheckpointError, match=tensors.name):
        run.checkpoint(-1).load(torch.nn.Linear(1, 1))
    flip(tensors)
    for name in ("states", ".metadata"):
        flip(folder / name)
        with pytest.raises(CheckpointError, match=name):
            Checkpoint(folder).load(torch.nn.Linear(1, 1))
        flip(folder / name)


def test_a_checkpoint_is_found_by_a_relative_path_and_through_a_link(run, tmp_path, monkeypatch):
    whole = run.checkpoints[-1].folder
    link = tmp_path / whole.name
    link.symlink_to(whole)
    monkeypatch.chdir(whole.parent)
    monkeypatch.setenv("HOME", str(whole.parent))
    for path in (whole.name, str(link), f"~/{whole.name}"):
        found = find_checkpoint(path, CELL, "")
        assert (found.checkpoint.folder, found.run.id) == (whole, run.id)
    resumed = with_checkpoint(RunOptions.of(resume=link), CELL, "")
    assert resumed.options.resume == str(whole)
    assert resumed.notice == f"Resumed after step 14 of run {run.id}."
