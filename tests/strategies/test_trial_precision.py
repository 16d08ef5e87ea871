"""Trials compute with all digits of float32: rounding to TF32 looks like a difference."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from idioms.notebook import notebook, on_ranks
from idioms.sequences import TRAIN, gpt

import nbmgpu

RECORDED = (
    gpt()
    + """
import torch
seen = []
class Recorded(Block):
    def forward(self, x):
        seen.append(torch.get_float32_matmul_precision())
        return super().forward(x)
model.blocks[0].__class__ = Recorded
"""
)

SETTINGS = """
import torch
from nbmgpu.environment.float32 import full_float32
torch.set_float32_matmul_precision("high")
with full_float32():
    print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
print(torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
"""

NEWER_SETTINGS = """
import torch
from nbmgpu.environment.float32 import full_float32
matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
matmul.fp32_precision = conv.fp32_precision = "tf32"
with full_float32():
    print(matmul.fp32_precision, conv.fp32_precision)
print(matmul.fp32_precision, conv.fp32_precision)
"""


@pytest.mark.parametrize(
    "options",
    [
        {"exact": "always"},
        {"strategy": "sp"},
        {"strategy": "tp", "sequence_parallel": True},
        {"strategy": "pp"},
    ],
    ids=str,
)
def test_trials_have_another_precision_than_the_cell(options: dict[str, object]) -> None:
    names = notebook(RECORDED)
    torch.set_float32_matmul_precision("high")
    try:
        nbmgpu.run(TRAIN, names, **on_ranks(2, options))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert names["seen"][-1] == "high"
    assert "highest" in names["seen"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [(SETTINGS, ["highest", "False", "high", "True"]),
     (NEWER_SETTINGS, ["ieee", "ieee", "tf32", "tf32"])],
    ids=["settings", "newer settings"],
)  # fmt: skip
def test_settings_are_restored(source: str, expected: list[str]) -> None:
    """In a process of its own: torch refuses to mix both kinds of settings."""
    command = [sys.executable, "-W", "ignore", "-c", source]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.split() == expected
