"""Background runs of this process: results are kept until they are written back."""

import random
import shutil

import numpy as np
import pytest
import torch

import nbmgpu
from nbmgpu.errors import OptionError

CELL = "n = 3"


@pytest.fixture
def background_run(monkeypatch, tmp_path):
    """A finished background run and the namespace for its results."""
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"n": 0}
    run = nbmgpu.run(CELL, namespace, gpus=1, cpu=True, background=True)
    assert run.wait(60) == "finished"
    return run, namespace


def test_a_run_is_kept_until_its_results_are_written_back(background_run):
    run, namespace = background_run
    with pytest.raises(OptionError, match="not in its notebook yet"):
        run.delete()
    nbmgpu.attach(run.id)
    assert namespace["n"] == 3
    run.delete()
    assert not run.folder.exists()


def test_attach_prefers_background_runs_to_newer_runs(background_run):
    run, namespace = background_run
    nbmgpu.run("m = 4", {}, gpus=1, cpu=True)
    assert nbmgpu.attach().id == run.id
    assert namespace["n"] == 3


def test_results_are_written_back_even_if_the_folder_was_removed(background_run):
    run, namespace = background_run
    shutil.rmtree(run.folder)
    nbmgpu.attach(run.id)
    assert namespace["n"] == 3


CHANGES = """
out.append(2 * lr)
names[1].append("c")
done = False
"""


def test_names_changed_in_the_notebook_but_not_in_the_cell_are_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"lr": 0.1, "names": ("a", ["b"]), "out": [], "done": False}
    run = nbmgpu.run(CHANGES, namespace, gpus=2, cpu=True, background=True)
    namespace |= {"lr": 0.5, "done": True}
    assert run.wait(60) == "finished"
    nbmgpu.attach(run.id)
    assert namespace == {"lr": 0.5, "names": ("a", ["b", "c"]), "out": [0.2], "done": False}
    assert nbmgpu.last_run.results[0]["lr"] == 0.1
    assert not run.view.notices.keys() & {"rank-0-values"}


def test_random_numbers_drawn_in_the_notebook_are_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"torch": torch, "random": random}
    cell = "drawn = torch.rand(3)\nmore = random.random()"
    run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, background=True)
    drawn, before = torch.rand(3), random.getstate()
    run.wait(60)
    nbmgpu.attach(run.id)
    assert not torch.equal(drawn, torch.rand(3))
    assert random.getstate() != before  # unused in the notebook: continues after the ranks


def test_globals_of_functions_changed_in_the_notebook_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"__name__": "__main__"}
    exec("SHAPE = (1, 2)\nSAME = (3, [])\ndef f(): SAME[1].append(1); return SHAPE", namespace)
    run = nbmgpu.run("y = f()", namespace, gpus=1, background=True)
    namespace["SHAPE"] = (5, 6)
    nbmgpu.attach(run.id)
    assert (namespace["y"], namespace["SHAPE"]) == ((1, 2), (5, 6))
    assert namespace["SAME"] == (3, [1])


def test_names_only_read_by_the_cell_keep_their_new_values(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"size": (1, 2), "rate": np.float64(0.1), "device": torch.device("cpu"), "gone": ()}
    cell = "total = size[0] + rate + len(str(device)) + len(gone)"
    run = nbmgpu.run(cell, namespace, gpus=2, cpu=True, background=True)
    namespace |= {"size": (5, 6), "rate": np.float64(0.5), "device": torch.device("meta")}
    del namespace["gone"]
    run.wait(60)
    nbmgpu.attach(run.id)
    assert namespace.pop("total") == 4.1
    expected = {"size": (5, 6), "rate": 0.5, "device": torch.device("meta")}
    assert {name: namespace[name] for name in expected} == expected
    assert "gone" not in namespace
