"""What a run on several machines says about how much it sends, and how to send less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nbmgpu.kernel import notices
from nbmgpu.serialization.bundle import serialize


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "LARGE", 2**20)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.save(tmp_path / "x.npy", np.ones(2**19, np.float32))
    return tmp_path / "x.npy"


def notice(value: Any) -> str:
    namespace = {"__name__": "__main__", "x": value}
    return notices.transfer(serialize({"x": value}, namespace, None))


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("mode", ["r", "c", "r+"])
def test_a_tensor_of_a_map_is_advised_to_be_made_in_the_cell(path: Path, mode: Any) -> None:
    tensor = torch.from_numpy(np.load(path, mmap_mode=mode))
    text = notice(torch.utils.data.TensorDataset(tensor))
    assert f"2.0 MiB of them are mapped from {path}" in text
    assert "call torch.from_numpy(x) in the cell" in text


def test_a_map_that_is_not_written_back_is_advised_to_be_read_only(path: Path) -> None:
    assert "x = np.load(path, mmap_mode='r')" in notice(np.load(path, mmap_mode="c"))


def test_of_an_array_only_the_path_is_sent(path: Path) -> None:
    assert "Faster" not in notice(np.load(path, mmap_mode="r"))


def test_other_data_are_advised_to_be_saved(path: Path) -> None:
    assert "Faster: save them once" in notice(torch.ones(2**19))
