"""torch's settings in the notebook hold in the ranks."""

import torch

import nbmgpu
from nbmgpu import settings


def test_ranks_compute_as_the_notebook_is_set(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    before = settings.capture()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True, warn_only=True)
        cell = "from nbmgpu import settings\nseen = settings.capture()\nx = torch.ones(2)"
        namespace = {"__name__": "__main__", "torch": torch}
        nbmgpu.run(cell, namespace, gpus=2)
        own = {"threads": namespace["seen"]["threads"]}
        assert namespace["seen"] == settings.capture() | own != before
        assert namespace["x"].dtype == torch.float64
    finally:
        settings.apply(before)


def test_ranks_use_no_more_threads_than_the_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        namespace = {"__name__": "__main__", "torch": torch}
        nbmgpu.run("threads = torch.get_num_threads()", namespace, gpus=1, cpu=True)
        assert namespace["threads"] == 1
    finally:
        torch.set_num_threads(before)
