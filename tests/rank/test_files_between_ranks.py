"""Links, temporary names beside the cell's files, and files that several ranks use."""

import json
import os
import textwrap

import pytest
import torch

STEP = """
import json, os, random, shutil, tempfile, threading, time
def late():
    time.sleep(random.SystemRandom().random() / 50)  # each rank for itself
"""


@pytest.fixture
def run(run_cell):
    """Runs a cell on 2 ranks, in a working directory of its own; returns the namespace."""

    def run(cell):
        return run_cell(STEP + textwrap.dedent(cell), w=torch.zeros(3)).namespace

    return run


LATEST = {
    "if it is there": """
        if os.path.islink("latest.pt"):
            os.remove("latest.pt")
        os.symlink(f"ck_{epoch}.pt", "latest.pt")
        """,
    "if it fails": """
        try:
            os.symlink(f"ck_{epoch}.pt", "latest.pt")
        except FileExistsError:
            os.remove("latest.pt")
            os.symlink(f"ck_{epoch}.pt", "latest.pt")
        """,
    "aside": """
        os.symlink(f"ck_{epoch}.pt", "latest.tmp")
        os.replace("latest.tmp", "latest.pt")
        """,
}


@pytest.mark.parametrize("link", LATEST.values(), ids=LATEST.keys())
@pytest.mark.parametrize("before", [False, True])
def test_a_link_to_the_latest_checkpoint(run, link, before):
    if before:
        os.symlink("of an earlier run", "latest.pt")
    cell = """
for epoch in range(4):
    late()
    torch.save(w + epoch, f"ck_{epoch}.pt")
    late()
"""
    cell += textwrap.indent(textwrap.dedent(link), "    ")
    cell += """
    late()
    found = torch.load("latest.pt")
    assert found[0] == epoch
"""
    run(cell)
    assert os.readlink("latest.pt") == "ck_3.pt"
    assert sorted(os.listdir()) == [*(f"ck_{n}.pt" for n in range(4)), "latest.pt"]


def test_a_temporary_file_that_is_renamed_in_its_folder(run):
    run("""
        fd, tmp = tempfile.mkstemp(dir=".")
        os.close(fd)
        with open(tmp, "w") as file:
            json.dump({"a": 1}, file)
        late()
        os.replace(tmp, "state.json")
        late()
        assert json.load(open("state.json")) == {"a": 1}
        with tempfile.TemporaryDirectory(dir=".") as folder:
            with open(f"{folder}/x.csv", "w") as file:
                file.write("whole")
            assert os.listdir(folder) == ["x.csv"]
            shutil.move(f"{folder}/x.csv", "x.csv")
        """)
    with open("state.json") as file:
        assert json.load(file) == {"a": 1}
    with open("x.csv") as file:
        assert file.read() == "whole"
    assert sorted(os.listdir()) == ["state.json", "x.csv"]


def test_a_replaced_file_is_read_with_its_new_content(run):
    torch.save(torch.zeros(3), "pretrained.pt")
    namespace = run("""
        shutil.copy("pretrained.pt", "model.pt")
        with open("best.pt", "wb") as file:
            file.write(b"nothing yet")
        late()
        w += 1
        torch.save(w, "model.pt")
        torch.save(w * 2, "aside.pt")
        os.replace("aside.pt", "best.pt")
        found, best = torch.load("model.pt"), torch.load("best.pt")
        assert (found[0], best[0]) == (1, 2)
        with open("settings.json", "w") as file:
            json.dump({"lr": 0.1}, file)
        late()
        !sed -i s/0.1/0.01/ settings.json
        lr = json.load(open("settings.json"))["lr"]
        assert lr == 0.01
        """)
    assert (namespace["found"].tolist(), namespace["lr"]) == ([1.0] * 3, 0.01)


def test_the_name_of_an_open_file_is_renamed(run):
    run("""
        with open("state.tmp", "w") as file:
            json.dump([1], file)
        late()
        os.replace(file.name, "state.json")
        assert json.load(open("state.json")) == [1]
        """)
    assert os.listdir() == ["state.json"]


def test_a_checkpoint_of_an_earlier_run_is_read_before_it_is_written_over(run):
    torch.save({"runs": 1}, "ck.pt")
    for number in range(2, 6):
        namespace = run("""
            late()
            ck = torch.load("ck.pt")
            ck["runs"] += 1
            torch.save(ck, "ck.pt")
            seen = torch.tensor([float(ck["runs"])])
            both = [torch.zeros(1), torch.zeros(1)]
            torch.distributed.all_gather(both, seen)
            """)
        assert [each.item() for each in namespace["both"]] == [number, number]


def test_all_ranks_write_in_a_folder_that_rank_0_creates(run):
    run("""
        import torch.distributed as dist
        if dist.get_rank() == 0:
            os.makedirs("alone/deep")
        dist.barrier()
        with open(f"alone/deep/{dist.get_rank()}.txt", "w") as file:
            file.write("x")
        torch.save(w, "alone/deep/w.pt")
        assert torch.load("alone/deep/w.pt").sum() == 0
        """)
    assert sorted(os.listdir("alone/deep")) == ["0.txt", "w.pt"]


def test_usual_ways_to_create_folders(run):
    run("""
        from pathlib import Path
        for number in range(20):
            late()
            Path(f"a{number}/b/c").mkdir(parents=True, exist_ok=True)
            Path(f"d{number}/e").mkdir(parents=True)
            os.makedirs(f"f{number}/g", exist_ok=True)
            os.makedirs(f"f{number}/g", exist_ok=True)
            if not os.path.isdir(f"h{number}"):
                late()
                os.mkdir(f"h{number}")
            assert os.path.isdir(f"a{number}/b/c") and os.path.isdir(f"h{number}")
        """)
    assert len(os.listdir()) == 80
