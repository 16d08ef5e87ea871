"""The device of a rank: what it sees, and the end of a run whose GPU has failed."""

from __future__ import annotations

import os

import pytest

import nbmgpu
from nbmgpu.rank import device


def test_after_an_error_in_a_gpu_kernel_nothing_is_read_from_the_gpu():
    """The cell ends before the error is known, as kernels run asynchronously."""
    cell = """
import nbmgpu.rank.shutdown
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
