"""A script of a finished run draws as the notebook did: it has the seeds that count, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from exporting import Notebook, compare_after
from table import DEFINITIONS, IMPORTS, LOADER, MODEL, SGD, TRAIN

SEEDED = f"{LOADER}\ntorch.manual_seed(1)\n{MODEL}\n{SGD}"
OWN = """
import random
import numpy as np
SEED = 3
def fix(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
"""

AFTER = {
    "before the cell": ([SEEDED, "torch.manual_seed(7)"], ["1", "7"]),
    "at the end of the model's cell": ([f"{SEEDED}\n_ = torch.manual_seed(7)"], ["1", "7"]),
    "one for data and model": ([f"{LOADER}\n{MODEL}\n{SGD}"], ["0"]),
    "one for parts of the data": (
        [
            "from torch.utils.data import random_split",
            "train, rest = random_split(dataset, [30, 14])",
            f"{LOADER.replace('dataset', 'train')}\n{MODEL}\n{SGD}",
        ],
        ["0"],
    ),
    "many without a draw": (
        [SEEDED, *(f"torch.manual_seed({n})" for n in range(8)), "np = 3"],
        ["1", "7"],
    ),
    "by a function, a condition and names": (
        [
            f"{OWN}\nfix(SEED)\n{LOADER}\n{MODEL}\n{SGD}",
            "SEED = 7",
            "if len(loader) > 2:\n    torch.manual_seed(SEED)",
        ],
        ["seed", "SEED"],
    ),
}


def numbers(text: str) -> list[str]:
    return re.findall(r"torch\.manual_seed\((\w+)\)", text)


@pytest.mark.parametrize("name", AFTER)
def test_it_trains_to_the_weights_of_the_run(name: str, tmp_path: Path) -> None:
    cells, seeds = AFTER[name]
    exported, difference = compare_after([IMPORTS, DEFINITIONS, *cells], TRAIN, tmp_path)
    text = exported.path.read_text()
    print(name, difference)
    assert numbers(text) == seeds, text
    assert difference < 1e-6, text


def test_a_script_with_nbmgpu_has_them_too(tmp_path: Path) -> None:
    cells = [IMPORTS, DEFINITIONS, SEEDED, "torch.manual_seed(7)"]
    exported, difference = compare_after(cells, TRAIN, tmp_path, with_nbmgpu=True)
    print(difference)
    text = exported.path.read_text()
    assert numbers(text) == ["1", "7"], text
    assert difference < 1e-6, text


def test_a_seed_has_the_number_that_its_name_had(tmp_path: Path) -> None:
    notebook = Notebook()
    notebook.run(IMPORTS, DEFINITIONS, "SEED = 3", f"torch.manual_seed(SEED)\n{MODEL}\n{SGD}")
    notebook.run(LOADER, "SEED = 7", "torch.manual_seed(SEED)")
    notebook.run("noise = torch.Generator()\nnoise.manual_seed(2)")
    path = notebook.export(TRAIN, tmp_path / "train.py", at_start=False).path
    assert numbers(path.read_text()) == ["3", "SEED"]
    assert "noise" not in path.read_text()
    path = notebook.export(TRAIN, tmp_path / "train.py", at_start=False, seed=5).path
    assert numbers(path.read_text()) == ["3", "5"]  # --seed 5 seeds the ranks
