"""Runs in the background of this process: what came back is not lost before it is taken."""

import shutil

import pytest

import nbmgpu
from nbmgpu.errors import OptionError

CELL = "n = 3"


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """A real run in the background that is over, and where its results belong."""
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"n": 0}
    run = nbmgpu.run(CELL, namespace, gpus=1, cpu=True, background=True)
    assert run.wait(60) == "finished"
    return run, namespace


def test_a_run_is_kept_until_its_results_are_home(begun):
    run, namespace = begun
    with pytest.raises(OptionError, match="not in its notebook yet"):
        run.delete()
    nbmgpu.attach(run.id)
    assert namespace["n"] == 3
    run.delete()
    assert not run.folder.exists()


def test_results_come_home_though_somebody_has_removed_the_folder(begun):
    run, namespace = begun
    shutil.rmtree(run.folder)
    nbmgpu.attach(run.id)
    assert namespace["n"] == 3


MEANWHILE = """
out.append(2 * lr)
names[1].append("c")
done = False
"""


def test_what_the_notebook_does_meanwhile_to_names_the_cell_leaves_alone_stays(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"lr": 0.1, "names": ("a", ["b"]), "out": [], "done": False}
    run = nbmgpu.run(MEANWHILE, namespace, gpus=2, cpu=True, background=True)
    namespace |= {"lr": 0.5, "done": True}
    assert run.wait(60) == "finished"
    nbmgpu.attach(run.id)
    assert namespace == {"lr": 0.5, "names": ("a", ["b", "c"]), "out": [0.2], "done": False}
    assert nbmgpu.last_run.results[0]["lr"] == 0.1
    assert not run.view.notices.keys() & {"rank-0-values"}
