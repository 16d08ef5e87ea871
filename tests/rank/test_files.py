"""What a cell writes is written once, by rank 0, and every rank can read it back."""

import gzip
import zipfile

import numpy as np
import pytest
import torch

import nbmgpu

CELL = """
import json, numpy as np
with open("history.csv", "a") as history:
    for x, y in loader:
        opt.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        opt.step()
        print(loss.item(), file=history)
        torch.save(model.state_dict(), "best.pt")
np.save("array.npy", np.arange(3))
json.dump({"a": 1}, open("settings.json", "w"))
lines = len(open("history.csv").readlines())
best = torch.load("best.pt")
same = all(torch.equal(best[k], v) for k, v in model.state_dict().items())
import os, pathlib, shutil
os.mkdir("made")
pathlib.Path("made/note.txt").write_text("a note")
with open("new.tmp", "w") as file:
    file.write("whole")
os.replace("new.tmp", "new.txt")
moved = open("new.txt").read()
pathlib.Path("old.txt").unlink()
shutil.rmtree("olds")
!echo once >> shell.txt
names = !ls
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cell")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NBMGPU_RUNS", str(tmp_path_factory.mktemp("runs")))
        model = torch.nn.Linear(4, 1)
        data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
        namespace = {
            "__name__": "__main__",
            "torch": torch,
            "model": model,
            "opt": torch.optim.SGD(model.parameters(), 0.1),
            "loader": torch.utils.data.DataLoader(data, batch_size=4),
        }
        (folder / "history.csv").write_text("before\n")
        (folder / "old.txt").write_text("old")
        (folder / "olds").mkdir()
        (folder / "olds" / "old.txt").write_text("old")
        run = nbmgpu.run(CELL, namespace, gpus=2)
    return folder, namespace, run


def test_each_file_is_written_once(outcome):
    folder, _, _ = outcome
    assert len((folder / "history.csv").read_text().splitlines()) == 6
    assert (folder / "shell.txt").read_text() == "once\n"
    assert np.load(folder / "array.npy").tolist() == [0, 1, 2]
    assert torch.load(folder / "best.pt").keys() == {"weight", "bias"}


def test_files_are_moved_and_deleted_once(outcome):
    folder, namespace, run = outcome
    assert (folder / "made" / "note.txt").read_text() == "a note"
    assert (folder / "new.txt").read_text() == "whole"
    assert namespace["moved"] == run.results[1]["moved"] == "whole"
    assert not any((folder / name).exists() for name in ("new.tmp", "old.txt", "olds"))


def test_every_rank_reads_its_own_writes(outcome):
    _, namespace, run = outcome
    assert namespace["same"] is True
    assert run.results[1]["same"] is True
    assert namespace["lines"] == run.results[1]["lines"] == 6
    assert list(namespace["names"]) == list(run.results[1]["names"])


def test_no_shadow_is_left(outcome):
    _, _, run = outcome
    assert not list((run.folder / "shadows").glob("*"))


def test_a_file_that_is_left_open_has_all_that_was_written(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    cell = """
log = open("log.csv", "w")
raw = open("raw.bin", "wb")
for number in range(100):
    print(number, file=log)
raw.write(b"bytes")
import gzip, zipfile
packed = gzip.open("log.gz", "wt")
packed.write("text")
archive = zipfile.ZipFile("out.zip", "w")
archive.writestr("inside.txt", "text")
"""
    nbmgpu.run(cell, {"__name__": "__main__"}, gpus=2, cpu=True)
    assert (tmp_path / "log.csv").read_text().split() == [str(n) for n in range(100)]
    assert (tmp_path / "raw.bin").read_bytes() == b"bytes"
    assert gzip.decompress((tmp_path / "log.gz").read_bytes()) == b"text"
    assert zipfile.ZipFile(tmp_path / "out.zip").read("inside.txt") == b"text"


def test_a_tracker_that_is_left_open_has_told_all(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    cell = """
class SummaryWriter:
    def __init__(self):
        self.records = []
    def add_scalar(self, name, value):
        self.records.append((name, value))
    def flush(self):
        with open("events", "a") as file:
            file.write(str(self.records))
writer = SummaryWriter()
writer.add_scalar("loss", 0.5)
"""
    nbmgpu.run(cell, {"__name__": "__main__"}, gpus=2, cpu=True)
    assert (tmp_path / "events").read_text() == "[('loss', 0.5)]"
