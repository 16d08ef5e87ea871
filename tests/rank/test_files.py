"""What a cell writes is written once, by rank 0, and every rank can read it back."""

import gzip
import os
import tempfile
import time
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


TEMPORARY = """
import os, tempfile
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "best.pt")
    for number in range(2):
        torch.save({"number": number}, path)
        best = torch.load(path)["number"]
with tempfile.NamedTemporaryFile(suffix=".pt") as file:
    torch.save(best + 1, file.name)
    last = torch.load(file.name)
gone = not os.path.exists(folder)
"""


def test_a_temporary_path_of_a_rank_is_written_by_that_rank(tmp_path, run_cell):
    results = run_cell(TEMPORARY).run.results.values()
    assert [(r["best"], r["last"], r["gone"]) for r in results] == [(1, 2, True)] * 2


LEFT_BEHIND = """
import os, tempfile
folder = tempfile.mkdtemp()
torch.save(torch.ones(2), os.path.join(folder, "ones.pt"))
unfinished = tempfile.TemporaryDirectory()
name = unfinished.name
fd, file = tempfile.mkstemp()
os.close(fd)
"""


def test_temporary_files_whose_names_reach_the_notebook_are_kept(tmp_path, run_cell):
    mine, other = run_cell(LEFT_BEHIND).run.results.values()
    names = ("folder", "name", "file")
    assert [os.path.exists(mine[name]) for name in names] == [True] * 3
    assert torch.load(os.path.join(mine["folder"], "ones.pt")).sum() == 2
    assert [os.path.exists(other[name]) for name in names] == [False] * 3


NAMED_BY_TIME = """
import os, time
os.mkdir("out")
time.sleep(0.01 * torch.distributed.get_rank())
path = f"out/{time.time_ns()}.pt"
torch.save(torch.ones(3), path)
ones = torch.load(path).sum().item()
"""


def test_a_path_with_the_time_in_it_is_written_by_every_rank(tmp_path, run_cell):
    results = run_cell(NAMED_BY_TIME).run.results.values()
    assert [r["ones"] for r in results] == [3.0, 3.0]
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {".pt"}


NAMED_BY_UUID = """
import uuid
path = f"{uuid.uuid4()}.pt"
torch.save(torch.ones(3), path)
ones = torch.load(path).sum().item()
"""


def test_a_path_with_a_uuid_in_it_is_written_by_every_rank(tmp_path, run_cell):
    results = run_cell(NAMED_BY_UUID).run.results.values()
    assert [r["ones"] for r in results] == [3.0, 3.0]
    assert {p.name for p in tmp_path.glob("*.pt")} == {r["path"] for r in results}


SAVED_LATE = """
import os, time
if torch.distributed.get_rank() == 0:
    time.sleep(1)  # before, and while it saves
class Slow:
    def __reduce__(self):
        time.sleep(0.5)
        return list, ()
torch.save(Slow(), "slow.pt")
found = os.path.exists("slow.pt"), os.path.getsize("slow.pt") > 100
open("note.txt", "w").write("a note")
noted = os.path.isfile("note.txt"), os.path.getsize("note.txt")
"""


def test_all_ranks_find_a_saved_file(tmp_path, run_cell):
    results = run_cell(SAVED_LATE).run.results.values()
    assert [r["found"] for r in results] == [(True, True)] * 2
    assert [r["noted"] for r in results] == [(True, 6)] * 2


GUARDED = """
import torch.distributed as dist
if dist.get_rank() == 0:
    torch.save(1, "first.pt")
torch.save(2, "both.pt")
both = torch.load("both.pt")
if dist.get_rank() == 1:
    torch.save(3, "second.pt")
dist.barrier()
second = torch.load("second.pt")
"""


MOVED = """
import os, pathlib, shutil, time
if torch.distributed.get_rank() == 0:
    time.sleep(0.5)
for number in range(3):
    torch.save(number, "last.tmp")
    os.replace("last.tmp", "last.pt")
    last = torch.load("last.pt"), os.path.exists("last.pt"), os.path.exists("last.tmp")
torch.save(3, "more.tmp")
pathlib.Path("more.tmp").rename("more.pt")
shutil.move("more.pt", "most.pt")
most = torch.load("most.pt")
"""


def test_all_ranks_find_a_file_that_is_saved_and_renamed(tmp_path, run_cell):
    results = run_cell(MOVED).run.results.values()
    assert [(r["last"], r["most"]) for r in results] == [((2, True, False), 3)] * 2
    assert {p.name for p in tmp_path.glob("*.*t*")} == {"last.pt", "most.pt"}


IN_TMP = """
import os, shutil
for number in range(20):
    os.makedirs(FOLDER)
    torch.save(number, f"{FOLDER}/{number}.pt")
    torch.save(number, f"{FOLDER}.pt")
    last = torch.load(f"{FOLDER}.pt")
    os.remove(f"{FOLDER}.pt")
    shutil.rmtree(FOLDER)
    torch.distributed.barrier()
"""


def test_a_temporary_folder_in_which_all_ranks_save_is_deleted_once(tmp_path, run_cell):
    folder = tempfile.mktemp()
    results = run_cell(IN_TMP, FOLDER=folder).run.results.values()
    assert [r["last"] for r in results] == [19, 19]
    assert not os.path.exists(folder)


def test_ranks_may_save_different_files(tmp_path, run_cell):
    results = run_cell(GUARDED).run.results.values()
    assert [(r["both"], r["second"]) for r in results] == [(2, 3)] * 2
    assert {p.name for p in tmp_path.glob("*.pt*")} == {"first.pt", "both.pt", "second.pt"}


SHIFTED = """
import os, shutil, threading, time
import torch.distributed as dist
rank = dist.get_rank()
os.makedirs("out", exist_ok=True)
os.makedirs("deep/er", exist_ok=True)
read = []
for number in range(3):
    if rank == 0:
        torch.save("log", "log.pt")
    else:
        time.sleep(0.05)
    torch.save(number, "last.pt")
    read.append(torch.load("last.pt"))
    dist.barrier()
    if os.path.exists("last.pt"):
        os.replace("last.pt", "previous.pt")
    read.append(torch.load("previous.pt"))
    torch.save(number + 10, "best.pt")
    shutil.move("best.pt", "out/")
    read.append(torch.load("out/best.pt"))
    os.remove("out/best.pt")
torch.save(0, "deep/er/a.pt")
time.sleep(0.1 * rank)
os.rename("deep", "moved")
read.append(torch.load("moved/er/a.pt"))
shutil.rmtree("moved")
read.append(os.path.exists("moved"))
threads = [threading.Thread(target=torch.save, args=(n, f"thread{n}.pt")) for n in range(8)]
for thread in threads[:: 1 - 2 * rank]:
    thread.start()
for thread in threads:
    thread.join()
read += [torch.load(f"thread{n}.pt") for n in range(8)]
"""


def test_ranks_may_save_in_different_orders(tmp_path, run_cell):
    results = run_cell(SHIFTED).run.results.values()
    expected = [0, 0, 10, 1, 1, 11, 2, 2, 12, 0, False, *range(8)]
    assert [r["read"] for r in results] == [expected] * 2
    names = {p.name for p in tmp_path.glob("**/*.pt*")}
    assert names == {"log.pt", "previous.pt", *(f"thread{n}.pt" for n in range(8))}


BY_RANK = """
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
for number, (x, y) in enumerate(DataLoader(
    TensorDataset(torch.arange(16.0).reshape(8, 2), torch.randn(8, 1)), batch_size=4)):
    if x.sum() > 20 and number == 0:  # on the second rank alone
        torch.save(number, "some.pt")
    if x.sum() > 50 and number == 1:  # likewise, and the first is a step ahead by now
        torch.save(number, "some.pt")
    opt.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    opt.step()
"""


def test_a_rank_that_saves_alone_does_not_stop_the_others(tmp_path, run_cell):
    run_cell(BY_RANK)
    assert torch.load(tmp_path / "some.pt") == 1
    assert [p.name for p in tmp_path.glob("some.pt*")] == ["some.pt"]


CACHED = """
import os
from torch.utils.data import DataLoader, Dataset
class Cached(Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        path = f"cache{index}.pt"
        if not os.path.exists(path):
            torch.save(torch.full((2,), float(index)), path + ".new")
            os.replace(path + ".new", path)
        return torch.load(path)
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), 0.0001)
losses = []
for epoch in range(3):
    for x in DataLoader(Cached(), batch_size=4, num_workers=WORKERS):
        opt.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        opt.step()
    torch.save(model.state_dict(), "last.pt")
    same = torch.equal(torch.load("last.pt")["weight"], model.weight)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_a_dataset_saves_is_written_by_the_rank_that_loads_it(
    tmp_path, run_cell, workers
):
    results = run_cell(CACHED, WORKERS=workers).run.results.values()
    assert [r["same"] for r in results] == [True, True]
    assert len(list(tmp_path.glob("cache*"))) == 16


ASIDE = """
import os, shutil, tempfile, time, uuid
rank = torch.distributed.get_rank()
time.sleep(0.2 * rank)
if not os.path.exists("init.pt"):
    torch.save(torch.zeros(2**20), "init.pt")
read = [torch.load("init.pt").sum().item()]
shutil.rmtree("folder", ignore_errors=True)  # of an earlier run
time.sleep(0.2 * (1 - rank))
os.makedirs("folder/of/ours")
with open("folder/of/ours/log", "w") as log:
    print(1, file=log)
os.mkdir("größer")
for number in range(3):
    torch.save(number, "größer/last.pt")
    name = f"folder/{uuid.uuid4()}"
    torch.save(number, name)
    os.replace(name, "folder/last.pt")
    read.append(torch.load("folder/last.pt"))
    with tempfile.NamedTemporaryFile(dir="folder", delete=False) as file:
        torch.save(number + 1, file.name)
    os.replace(file.name, "folder/next.pt")
    read.append(torch.load("folder/next.pt"))
    os.remove("folder/last.pt")
    read.append(os.path.exists("folder/last.pt"))
    torch.save(number, f"{time.time_ns()}.one")
"""


def test_files_with_different_names_on_each_rank_that_are_renamed(tmp_path, run_cell):
    (tmp_path / "folder" / "of" / "ours").mkdir(parents=True)
    (tmp_path / "folder" / "old.pt").write_text("old")
    begun = time.monotonic()
    results = run_cell(ASIDE).run.results.values()
    assert time.monotonic() - begun < 15
    expected = [0.0, *(x for n in range(3) for x in (n, n + 1, False))]
    assert [r["read"] for r in results] == [expected] * 2
    names = {p.name for p in (tmp_path / "folder").iterdir()}
    assert names == {"of", "next.pt"}
    assert (tmp_path / "folder" / "of" / "ours" / "log").read_text() == "1\n"
    assert torch.load(tmp_path / "größer" / "last.pt") == 2
    assert len(list(tmp_path.glob("*.one"))) == 6
    assert len(list(tmp_path.glob("größer/*"))) == 1


LATE = """
import os, pathlib, shutil, time
rank = torch.distributed.get_rank()
class Slow:
    def __reduce__(self):
        time.sleep(0.6)
        return list, ()
pathlib.Path("settings").write_text("ours")
time.sleep(0.3 * (1 - rank))
shutil.copy("settings", "copied")
shutil.copy2("settings", "copied too")
read = [pathlib.Path(name).read_text() for name in ("copied", "copied too")]
for number in range(3):
    if rank == 0:
        torch.save(Slow(), "log.pt")
    torch.save(number, "last.pt")
    read.append(torch.load("last.pt"))
for number in range(20):
    torch.save(torch.full((1000,), number), "again.pt")
    read.append(int(torch.load("again.pt")[-1]))
"""


def test_a_file_has_the_content_that_was_saved_last(tmp_path, run_cell):
    results = run_cell(LATE).run.results.values()
    assert [r["read"] for r in results] == [["ours", "ours", 0, 1, 2, *range(20)]] * 2


def test_no_shadow_files_are_left(outcome):
    _, _, run = outcome
    assert not list((run.folder / "shadows").glob("*"))


def test_an_unclosed_file_is_flushed(tmp_path, run_cell):
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
    run_cell(cell)
    assert (tmp_path / "log.csv").read_text().split() == [str(n) for n in range(100)]
    assert (tmp_path / "raw.bin").read_bytes() == b"bytes"
    assert gzip.decompress((tmp_path / "log.gz").read_bytes()) == b"text"
    assert zipfile.ZipFile(tmp_path / "out.zip").read("inside.txt") == b"text"


def test_an_unclosed_tracker_is_flushed(tmp_path, run_cell):
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
    run_cell(cell)
    assert (tmp_path / "events").read_text() == "[('loss', 0.5)]"
