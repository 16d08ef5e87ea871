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
        own = {torch_settings.THREADS: namespace["seen"][torch_settings.THREADS]}
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
    cell = "from nbmgpu.environment.torch_settings import capture\nseen = capture()"
    script = f"""
import nbmgpu, torch
from nbmgpu.environment import torch_settings
torch.{name}.fp32_precision = {value!r}
namespace = {{"__name__": "__main__"}}
nbmgpu.run({cell!r}, namespace, gpus=2, cpu=True)
seen = {{name: value for name, value in namespace["seen"].items() if "fp32" in name}}
assert seen == {{name: torch_settings.capture()[name] for name in seen}}
assert {value!r} in seen.values()
"""  # a new process, as torch does not allow mixing old and new settings
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


CHANGES = {
    "backends.cudnn.allow_tf32": "torch.backends.cudnn.allow_tf32 = False",
    "backends.cudnn.benchmark": "torch.backends.cudnn.benchmark = True",
    "backends.cudnn.benchmark_limit": "torch.backends.cudnn.benchmark_limit = 3",
    "backends.cudnn.deterministic": "torch.backends.cudnn.deterministic = True",
    "backends.cudnn.enabled": "torch.backends.cudnn.enabled = False",
    "backends.cuda.matmul.allow_fp16_accumulation": (
        "torch.backends.cuda.matmul.allow_fp16_accumulation = True"
    ),
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)"
    ),
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False"
    ),
    "backends.miopen.immediate": "torch.backends.miopen.immediate = True",
    "backends.mkldnn.deterministic": "torch.backends.mkldnn.deterministic = True",
    "backends.mkldnn.enabled": "torch.backends.mkldnn.set_flags(False)",
    "backends.quantized.engine": "torch.backends.quantized.engine = 'qnnpack'",
    "utils.deterministic.fill_uninitialized_memory": (
        "torch.utils.deterministic.fill_uninitialized_memory = False"
    ),
    "is_warn_always_enabled": "torch.set_warn_always(True)",
    "is_autocast_cache_enabled": "torch.set_autocast_cache_enabled(False)",
    "backends.cuda.flash_sdp_enabled": "torch.backends.cuda.enable_flash_sdp(False)",
    "backends.cuda.mem_efficient_sdp_enabled": (
        "torch.backends.cuda.enable_mem_efficient_sdp(False)"
    ),
    "backends.cuda.math_sdp_enabled": "torch.backends.cuda.enable_math_sdp(False)",
    "backends.cuda.cudnn_sdp_enabled": "torch.backends.cuda.enable_cudnn_sdp(False)",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed": (
        "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)"
    ),
    "backends.mha.get_fastpath_enabled": "torch.backends.mha.set_fastpath_enabled(False)",
    "__future__.get_overwrite_module_params_on_conversion": (
        "torch.__future__.set_overwrite_module_params_on_conversion(True)"
    ),
    "autocast of cuda": "torch.set_autocast_dtype('cuda', torch.bfloat16)",
    "autocast of cpu": "torch.set_autocast_enabled('cpu', True)",
    "autograd.set_detect_anomaly": "torch.autograd.set_detect_anomaly(True, check_nan=False)",
    "sparse.check_sparse_tensor_invariants": "torch.sparse.check_sparse_tensor_invariants.enable()",
    "backends.nnpack": "torch.backends.nnpack.set_flags(False)",
    "set_flush_denormal": "torch.set_flush_denormal(True)",
}
"""Settings by name, and what a notebook writes to change them; others have tests of their own."""


@pytest.mark.parametrize("where", ["notebook", "cell"])
def test_settings_reach_ranks_and_return(tmp_path, monkeypatch, where):
    """In a new process, as the settings stay."""
    monkeypatch.setenv("NBMGPU_RUNS", str(tmp_path))
    changes = "\n".join(CHANGES.values())
    in_notebook, in_cell = (changes, "") if where == "notebook" else ("", changes)
    cell = "from nbmgpu.environment.torch_settings import capture\n"
    cell += f"{in_cell}\nseen = capture()\n"
    cell += "zero = float(torch.full((1,), 1e-38) / 100)"
    script = f"""
import nbmgpu, torch
from nbmgpu.environment import torch_settings
before = torch_settings.capture()
exec({in_notebook!r})
namespace = {{"__name__": "__main__", "torch": torch}}
nbmgpu.run({cell!r}, namespace, gpus=2, cpu=True)
for name in {list(CHANGES)}:
    here = torch_settings.capture()[name]
    assert here == namespace["seen"][name] != before[name], name
assert namespace["zero"] == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "is not possible here" not in done.stdout + done.stderr


NOT_CARRIED = {
    "mkldnn.allow_tf32",  # of Intel GPUs
    "cudnn.fp32_precision", "mkldnn.fp32_precision", "opt_einsum.enabled", "opt_einsum.strategy",
}  # fmt: skip
"""Flags of ``torch.backends`` that are not in ``ATTRIBUTES``; all but Intel's have their own."""


def test_every_flag_of_torchs_backends_is_known():
    flags = {
        f"backends.{name}.{flag}"
        for name, module in vars(torch.backends).items()
        if isinstance(module, torch.backends.PropModule)
        for flag, value in vars(type(module)).items()
        if isinstance(value, torch.backends.ContextProp)
    }
    assert "backends.cudnn.enabled" in flags
    not_carried = {f"backends.{name}" for name in NOT_CARRIED}
    assert flags - set(torch_settings.ATTRIBUTES) <= not_carried


def test_a_torch_that_lacks_settings_has_the_others(monkeypatch):
    later = ("backends.of_a_later_torch.enabled", *torch_settings.ATTRIBUTES)
    monkeypatch.setattr(torch_settings, "ATTRIBUTES", later)
    monkeypatch.setattr(torch_settings, "_settings", torch_settings._settings.__wrapped__)
    settings = torch_settings.capture()
    assert settings[later[0]] is None
    assert settings["backends.cudnn.enabled"] is True


def test_a_setting_that_is_impossible_in_the_ranks_is_named():
    with pytest.warns(UserWarning, match=r"torch\.backends\.quantized\.engine = 'qnn' is not poss"):
        torch_settings.apply({"backends.quantized.engine": "qnn"})


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
