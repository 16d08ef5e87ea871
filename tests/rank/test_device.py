"""The device of a rank: what it sees, and the end of a run whose GPU has failed."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

import nbmgpu
from nbmgpu.rank import device
from nbmgpu.rank.startup import backends


def test_after_an_error_in_a_gpu_kernel_nothing_is_read_from_the_gpu():
    """The cell ends before the error is known, as kernels run asynchronously."""
    cell = """
import nbmgpu.rank.shutdown, torch
torch.distributed.barrier()  # both have begun
def device_error(device):
    return RuntimeError("CUDA error: device-side assert triggered")
nbmgpu.rank.shutdown.device_error = device_error
value = 2
"""
    names = {"value": 1}
    with pytest.raises(RuntimeError, match="device-side assert triggered") as caught:
        nbmgpu.run(cell, names, gpus=2, cpu=True)
    assert names["value"] == 1
    assert "variables are those from before the cell" in str(caught.value.__cause__)
    run = nbmgpu.last_run
    assert run is not None
    assert run.state == "failed"
    assert "Traceback" not in run.log(0)


@pytest.mark.parametrize(
    ("visible", "own"), [(None, "1"), ("2,3", "3"), ("GPU-2aa,GPU-3bb", "GPU-3bb")]
)
def test_a_rank_sees_its_own_gpu_as_the_first(monkeypatch, visible, own) -> None:
    """Libraries select the GPU with the number in LOCAL_RANK."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    device._hide_other_devices("cuda", [1])
    assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["LOCAL_RANK"]) == (own, "0")


@pytest.mark.parametrize(
    ("device", "shared", "expected"),
    [
        ("cpu", False, "gloo"),
        ("cpu", True, "gloo"),
        ("cuda:0", False, "cpu:gloo,cuda:nccl"),
        ("cuda:0", True, "gloo"),
        ("xpu:0", False, "cpu:gloo,xpu:xccl"),
    ],
)
def test_each_device_has_the_backend_that_torch_chooses_for_it(device, shared, expected) -> None:
    assert backends(device, shared) == expected


def test_a_rank_that_shares_a_visible_device_with_others_says_so(monkeypatch) -> None:
    """This torch has no device: hiding others changes nothing."""
    record = SimpleNamespace(
        threads=1, world_size=2, options=SimpleNamespace(values={}), devices=("cuda:0", "cuda:1")
    )
    monkeypatch.setattr(device, "keep_freed_memory", lambda ranks: None)
    monkeypatch.setattr(device.torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(device.torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(RuntimeError, match="rank 1 sees 2 cuda devices, and has 1"):
        device.enter_device(record, 1)  # type: ignore[arg-type]
