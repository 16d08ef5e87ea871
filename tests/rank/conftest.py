"""Cells that run on two ranks, in a working directory of their own."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from runs_folder import runs_folder  # noqa: F401

import nbmgpu


@dataclass
class FinishedCell:
    """A run that has finished, and the notebook's namespace after it."""

    run: nbmgpu.Run
    namespace: dict[str, Any]

    def on_each_rank(self, *names: str) -> list[Any]:
        """Return for each rank the value of a variable, or a tuple of several."""
        results = [self.run.results[rank] for rank in range(len(self.run.results))]
        values = [tuple(held[name] for name in names) for held in results]
        return values if len(names) > 1 else [value for (value,) in values]


@pytest.fixture
def run_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FinishedCell]:
    """Runs a cell on 2 ranks in ``tmp_path``; keyword arguments are the notebook's variables."""
    monkeypatch.chdir(tmp_path)

    def run_cell(cell: str, ranks: int = 2, **names: Any) -> FinishedCell:
        namespace = {"__name__": "__main__", "torch": torch} | names
        run = nbmgpu.run(textwrap.dedent(cell), namespace, gpus=ranks, cpu=True, exact="never")
        return FinishedCell(run, namespace)

    return run_cell
