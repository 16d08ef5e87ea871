"""Exported scripts, run by torchrun without nbmgpu, train to the weights of nbmgpu's ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from exporting import compare
from table import BY_NAME, TABLE, Exported

OFTEN = {
    "an uneven batch size", "evaluation and a plateau", "functions of earlier cells",
    "a model trained in an earlier cell", "all made in the cell", "two models",
}  # fmt: skip
"""What is run at each change; the others are marked ``matrix``."""

OTHERS = [
    ("fsdp", "functions of earlier cells"),
    ("zero1", "a scheduler"),
    ("fsdp", "an uneven batch size"),
    ("fsdp", "clipping"),
    ("fsdp", "Adam"),
    ("fsdp", "the best state"),
    ("fsdp", "two models"),
    ("fsdp", "a model of transformers"),
    ("zero1", "Adam"),
    ("zero1", "all made in the cell"),
    ("zero1", "frozen layers and parameter groups"),
    ("zero2", "Adam"),
    ("fsdp", "a model trained in an earlier cell"),
    ("fsdp", "all made in the cell"),
]


def marked(strategy: str, entry: Exported, often: bool) -> object:
    marks = () if often else (pytest.mark.matrix,)
    return pytest.param(strategy, entry, id=f"{strategy}, {entry}", marks=marks)


CASES = [
    *(marked("ddp", entry, entry.name in OFTEN) for entry in TABLE),
    *(marked(s, BY_NAME[name], place < 2) for place, (s, name) in enumerate(OTHERS)),
]


@pytest.mark.parametrize(("strategy", "entry"), CASES)
def test_the_script_trains_as_ranks_do(strategy: str, entry: Exported, tmp_path: Path) -> None:
    exported, difference = compare(
        [*entry.cells], entry.cell, tmp_path, models=entry.models, strategy=strategy
    )
    text = exported.path.read_text()
    assert difference < 1e-5, text
    if strategy == "ddp":
        for source in entry.expected:
            assert source in text, text
        assert len(exported.notes) == entry.notes, exported.notes
    check_with_ruff(exported.path)


def check_with_ruff(script: Path) -> None:
    """Check that a script has no unused import, no unknown name, no line that is too long."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "110"]
    command += ["--select", "E,F,I,B006", "--ignore", "E501", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + script.read_text()
