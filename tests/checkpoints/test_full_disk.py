"""Checkpoints of Trainers that do not fit: a notice says so, and the training goes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from matrix_selection import sampled
from test_trainer_checkpoints import CELLS, notebook, weights

import nbmgpu

OPTIONS = {"gpus": 2, "cpu": True, "exact": "never", "checkpoint_every": "epoch"}
SMALL = 3 << 20
LARGE = "model.register_buffer('large', torch.zeros(SIZE))\n"
"""A state of the model that does, or does not, fit."""
LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, -1))\n"
UNLIMITED = "\nresource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))"
"""Writing fails when files have come to this size, which no free space tells."""

LIBRARIES = sampled([(name,) for name in reversed(CELLS)], 2, "nbmgpu/rank/checkpoints")


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """Runs are on a disk with 3 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not permitted")
    monkeypatch.setenv("NBMGPU_RUNS", str(folder))
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_training_goes_on_without_checkpoints(library: str, small_disk: Path, tmp_path) -> None:
    namespace = notebook(library, str(tmp_path / "out")) | {"SIZE": SMALL // 4}
    before = weights(namespace)
    nbmgpu.run(LARGE + CELLS[library], namespace, **OPTIONS)
    assert float((weights(namespace) - before).abs().max()) > 1e-4
    run = nbmgpu.last_run
    assert run.state == "finished"
    text = run.view.notices["checkpoint-failed"].text
    assert "step 5 could not be written: no space left on the disk" in text, text
    assert not list((run.folder / "checkpoints").iterdir())


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_training_goes_on_where_writing_fails(library: str, tmp_path) -> None:
    namespace = notebook(library, str(tmp_path / "out")) | {"SIZE": SMALL // 4, "LIMIT": SMALL // 4}
    nbmgpu.run(LIMITED + LARGE + CELLS[library] + UNLIMITED, namespace, **OPTIONS)
    run = nbmgpu.last_run
    assert "step 5 could not be written: " in run.view.notices["checkpoint-failed"].text
    assert not list((run.folder / "checkpoints").iterdir())
