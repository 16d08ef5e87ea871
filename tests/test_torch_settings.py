"""torch's settings in the notebook apply to the ranks."""

import subprocess
import sys

import pytest
import torch

import nbmgpu
from nbmgpu.environment import torch_settings


def test_ranks_have_the_notebooks_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    before = torch_settings.capture()
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True, warn_only=True)
        cell = "from nbmgpu.environment.torch_settings import capture\n"
        cell += "x = torch.ones(2)\nseen = capture()"
        namespace = {"__name__": "__main__", "torch": torch}
        nbmgpu.run(cell, namespace, gpus=2)
        own = {"threads": namespace["seen"]["threads"]}
        assert namespace["seen"] == torch_settings.capture() | own != before
        assert namespace["x"].dtype == torch.float64
    finally:
        torch_settings.apply(before)


@pytest.mark.parametrize(
    ("name", "value"),
    [("backends.mkldnn.matmul", "bf16"), ("backends.cuda.matmul", "tf32"), ("backends", "ieee")],
)
def test_ranks_have_the_notebooks_fp32_precision(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    cell = "from nbmgpu.environment.torch_settings import capture\nseen = capture()['precisions']"
    script = f"""
import nbmgpu, torch
from nbmgpu.environment import torch_settings
torch.{name}.fp32_precision = {value!r}
namespace = {{"__name__": "__main__"}}
nbmgpu.run({cell!r}, namespace, gpus=2, cpu=True)
assert namespace["seen"] == torch_settings.capture()["precisions"]
assert {value!r} in namespace["seen"].values()
"""  # a new process, as torch does not allow mixing old and new settings
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_no_grad_of_the_notebook_applies_to_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"__name__": "__main__", "weight": torch.ones(1, requires_grad=True)}
    with torch.no_grad():
        nbmgpu.run("y = (weight * 2).requires_grad", namespace, gpus=1, cpu=True)
    assert namespace["y"] is False


def test_numpy_and_torch_have_the_same_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"__name__": "__main__", "torch": torch}
    cell = """
from threadpoolctl import threadpool_info
blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
threads = torch.get_num_threads()
"""
    nbmgpu.run(cell, namespace, gpus=1, cpu=True)
    assert namespace["blas"] == {namespace["threads"]}
    assert namespace["threads"] > 1 or torch.get_num_threads() == 1


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


def test_gpus_are_hidden_from_ranks_with_cpu(tmp_path, monkeypatch):
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    namespace = {"__name__": "__main__"}
    nbmgpu.run("import os\nseen = os.environ['CUDA_VISIBLE_DEVICES']", namespace, gpus=1, cpu=True)
    assert namespace["seen"] == ""
