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
import operator, torch
from nbmgpu.environment.float32 import UNITS, full_float32
backends = torch.backends
CHANGE
def settings():
    older = torch.get_float32_matmul_precision, lambda: backends.cudnn.allow_tf32
    newer = [operator.attrgetter(name)(backends).fp32_precision for name in UNITS]
    return newer, [*map(known, older)]
def known(setting):
    try:
        return setting()
    except RuntimeError:
        return "mixed"
before = settings()
with full_float32():
    newer, (precision, allowed) = settings()
    assert newer[0] == "ieee", newer
    assert newer[1] == "ieee" or allowed is False, "convolutions"
assert settings() == before, (before, settings())
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
    "change",
    [
        "",
        "torch.set_float32_matmul_precision('high')",
        "backends.cuda.matmul.allow_tf32 = True",
        "backends.fp32_precision = 'tf32'",
        "backends.cuda.matmul.fp32_precision = 'tf32'",
        "backends.cudnn.fp32_precision = 'ieee'",
        "backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision = 'ieee', 'tf32'",
    ],
)
def test_settings_are_restored(change: str) -> None:
    """In a process of its own: torch refuses to mix older and newer settings."""
    command = [sys.executable, "-W", "ignore", "-c", SETTINGS.replace("CHANGE", change)]
    subprocess.run(command, timeout=120, check=True)
