"""Settings of the process: ranks have the notebook's, and the notebook gets the cell's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch

import nbmgpu
from nbmgpu.environment.process_settings import ProcessSettings

PRINT = (
    "shown = [str(torch.tensor(1 / 3)), str(np.array([1 / 3])), mpl.rcParams['lines.linewidth']]"
)


@pytest.fixture(autouse=True)
def restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the settings of this process, and begin in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    before = ProcessSettings.capture()
    yield
    before.apply()


def run(cell: str) -> dict[str, object]:
    namespace = {"torch": torch, "np": np, "mpl": mpl, "os": os}
    nbmgpu.run(cell, namespace, gpus=2, cpu=True)
    return namespace


def test_ranks_print_as_the_notebook_does() -> None:
    torch.set_printoptions(precision=2)
    np.set_printoptions(precision=3)
    mpl.rcParams["lines.linewidth"] = 7.5
    assert run(PRINT)["shown"] == ["tensor(0.33)", "[0.333]", 7.5]


def test_ranks_print_tables_as_the_notebook_does() -> None:
    frame = pd.DataFrame({"loss": [1 / 3] * 9})
    with (
        pd.option_context("display.float_format", "{:.1f}".format, "display.max_rows", 4),
        sklearn.config_context(transform_output="pandas"),
    ):
        expected = str(frame)
        namespace = {"frame": frame, "sklearn": sklearn}
        nbmgpu.run(
            "shown, output = str(frame), sklearn.get_config()['transform_output']\n"
            "import pandas as pd; pd.set_option('display.precision', 3)",
            namespace,
            gpus=2,
            cpu=True,
        )
        assert namespace["shown"] == expected
        assert namespace["output"] == "pandas"
        assert pd.get_option("display.precision") == 3
        pd.reset_option("display.precision")


def test_errors_of_numpy() -> None:
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        run("np.ones(1) / 0")


def test_the_notebook_has_what_the_cell_has_set(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    os.environ["NBMGPU_TEST_OLD"] = "1"
    run(
        "os.chdir('data')\n"
        "os.environ['NBMGPU_TEST_NEW'] = 'x'; del os.environ['NBMGPU_TEST_OLD']\n"
        "torch.set_default_dtype(torch.float64); torch.set_printoptions(precision=1)\n"
        "np.set_printoptions(precision=2); mpl.rcParams['lines.linewidth'] = 8.5"
    )
    assert Path.cwd() == tmp_path / "data"
    assert os.environ["NBMGPU_TEST_NEW"] == "x"
    assert "NBMGPU_TEST_OLD" not in os.environ
    assert torch.get_default_dtype() == torch.float64
    shown = str(torch.tensor(1 / 3)), str(np.array([1 / 3])), mpl.rcParams["lines.linewidth"]
    assert shown == ("tensor(0.3)", "[0.33]", 8.5)


def test_a_cell_that_sets_nothing_changes_nothing() -> None:
    before = ProcessSettings.capture()
    run("model = torch.nn.Linear(2, 2); model(torch.ones(4, 2)).sum().backward()")
    assert ProcessSettings.capture() == before


def test_an_interrupt_as_no_grad_ends_leaves_gradients_enabled() -> None:
    """As where ranks wait in a collective of an optimizer's step while the run is stopped."""
    cell = """
import ctypes
interrupt = ctypes.CDLL(None)["raise"]
interrupt.errcheck = int  # raises a TypeError, so that the interrupt arrives in __exit__
with torch.no_grad():
    interrupt(2)
"""
    with pytest.raises(KeyboardInterrupt):
        run(cell)
    assert torch.is_grad_enabled()
