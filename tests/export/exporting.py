"""Exports an idiom, and runs it on ranks, and as the script under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from idioms.differences import difference
from idioms.notebook import execute, on_ranks, working_directory
from IPython.core.inputtransformer2 import TransformerManager

import nbmgpu
from nbmgpu.environment import random_state
from nbmgpu.exports.request import ExportRequest
from nbmgpu.exports.writing import ExportedScript, write_script
from nbmgpu.options.run_options import RunOptions

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@dataclass
class Notebook:
    """The cells of a notebook that were executed, and what they have made."""

    cells: list[str] = field(default_factory=list)
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    def run(self, *cells: str) -> None:
        """Execute cells."""
        for cell in cells:
            execute(cell, self.namespace)
            self.cells.append(cell)

    def request(
        self, cell: str, ranks: int = 2, at_start: bool = True, **options: Any
    ) -> ExportRequest:
        """Return the request to export ``cell`` as it would start now, or after it has run."""
        return ExportRequest(
            cell=cell,
            options=RunOptions.of(gpus=ranks, cpu=True, **options),
            devices=("cpu",) * ranks,
            values=self.namespace,
            cells=tuple(self.cells),
            transform=TransformerManager().transform_cell,
            at_start=at_start,
            random=random_state.capture() if at_start else None,
            origin="a test",
        )

    def export(
        self, cell: str, path: Path, ranks: int = 2, with_nbmgpu: bool = False, **options: Any
    ) -> ExportedScript:
        """Export ``cell`` as it would start now."""
        return write_script(self.request(cell, ranks, **options), path, with_nbmgpu)


def torchrun(script: Path, ranks: int = 2) -> str:
    """Run a script in its folder; return what it prints."""
    command = [TORCHRUN, "--standalone", "--nproc-per-node", str(ranks), script.name]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=script.parent, env=environment, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def compare(
    cells: list[str], cell: str, folder: Path, ranks: int = 2, models: str = "model", **options: Any
) -> tuple[ExportedScript, float]:
    """Return the script of ``cell``, and the largest difference of weights from those of ranks."""
    notebook = Notebook()
    notebook.run(*cells)
    exported = notebook.export(cell, folder / "train.py", ranks, **options)
    text = exported.path.read_text()
    assert "nbmgpu" not in text.replace("Exported from", "")
    torchrun(exported.path, ranks)
    with working_directory(folder / "ranks"):
        nbmgpu.run(cell, notebook.namespace, **on_ranks(ranks, options))
    return exported, _difference(notebook, folder, models)


def compare_after(
    cells: list[str], cell: str, folder: Path, **options: Any
) -> tuple[ExportedScript, float]:
    """Return what ``compare`` does for a script that is exported after the run, of 2 ranks."""
    notebook = Notebook()
    notebook.run(*cells)
    with working_directory(folder / "ranks"):
        nbmgpu.run(cell, notebook.namespace, **on_ranks(2, {}))
    exported = notebook.export(cell, folder / "train.py", at_start=False, **options)
    if options.get("with_nbmgpu"):
        command = [sys.executable, exported.path.name]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    else:
        torchrun(exported.path)
    return exported, _difference(notebook, folder, "model")


def _difference(notebook: Notebook, folder: Path, models: str) -> float:
    found = 0.0
    for name in models.split():
        trained = torch.load(folder / f"{name}.pt")
        own = dict(notebook.namespace[name].state_dict())
        assert trained.keys() == own.keys()
        found = max(found, difference(own, dict(trained)))
    return found
