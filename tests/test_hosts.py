"""A notebook with one run, in each program that executes notebooks without JupyterLab."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

REPOSITORY = Path(__file__).parents[1]

SETUP = """\
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.zeros(8, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4)
epochs = 2
before = model.weight.detach().clone()
"""
CELL = """\
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
"""
RESULT = """\
assert not torch.equal(model.weight, before), "the model is trained in place"
print("passes over the data:", epoch + 1)
"""
BOOK = ("%load_ext nbmgpu", SETUP, f"%%mgpu --gpus 2 --cpu\n{CELL}", RESULT)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the notebook, in which no program finds this user's settings."""
    for variable in ("NBMGPU_RUNS", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    cells = [nbformat.v4.new_code_cell(cell) for cell in BOOK]
    cells[1].metadata["tags"] = ["parameters"]  # papermill adds a cell after this one
    book = nbformat.v4.new_notebook(cells=cells)
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    book.metadata["language_info"] = {"name": "python"}
    nbformat.write(book, tmp_path / "book.ipynb")
    return tmp_path


def run(folder: Path, *command: str) -> str:
    """Run a command in the folder; return what it prints."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def assert_complete(book: NotebookNode, epochs: int = 2) -> None:
    """Assert that the cell has run on two ranks, that its summary is kept, and its results are."""
    run_cell = next(cell for cell in book.cells if cell.source.startswith("%%mgpu"))
    outputs = [output.data for output in run_cell.outputs if output.output_type == "display_data"]
    assert ["ddp on 2 ranks (cpu)" in each["text/plain"] for each in outputs] == [True]
    assert "✓ finished" in outputs[0]["text/html"]
    assert "<svg" in outputs[0]["text/html"]
    printed = "".join(output.get("text", "") for output in book.cells[-1].outputs)
    assert printed == f"passes over the data: {epochs}\n"


def test_nbclient(folder: Path) -> None:
    book = read(folder / "book.ipynb")
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(folder)}}).execute()
    assert_complete(book)


def test_jupyter_execute(folder: Path) -> None:
    run(folder, sys.executable, "-m", "jupyter", "execute", "--inplace", "book.ipynb")
    assert_complete(read(folder / "book.ipynb"))


def test_papermill(folder: Path) -> None:
    pytest.importorskip("papermill")
    run(folder, "papermill", "book.ipynb", "out.ipynb", "-p", "epochs", "3", "--no-progress-bar")
    assert_complete(read(folder / "out.ipynb"), epochs=3)


def test_nbconvert_to_html(folder: Path) -> None:
    command = ("nbconvert", "--execute", "--to", "html", "book.ipynb")
    run(folder, sys.executable, "-m", "jupyter", *command)
    page = (folder / "book.html").read_text()
    assert re.search(r"✓ finished</b>.{1,40}ddp on 2 ranks \(cpu\)", page)
    assert 'aria-label="loss"' in page
    assert "passes over the data: 2" in page


def test_ipython(folder: Path) -> None:
    """In a terminal, without Jupyter: the summary is text."""
    (folder / "book.ipy").write_text("\n".join(BOOK[:2]))
    cell = f"get_ipython().run_cell_magic('mgpu', '--gpus 2 --cpu', {CELL!r})"
    (folder / "rest.ipy").write_text(f"{cell}\n{RESULT}")
    shown = run(folder, sys.executable, "-m", "IPython", "-c", "%run -i book.ipy\n%run -i rest.ipy")
    assert re.search(r"^finished +ddp on 2 ranks \(cpu\)", shown, re.MULTILINE)
    assert re.search(r"^loss +\S+ → \S+$", shown, re.MULTILINE)
    assert shown.rstrip().endswith("passes over the data: 2")


MARIMO = """\
import marimo

app = marimo.App()


@app.cell
def _():
    import nbmgpu, torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.ones(8, 3), torch.zeros(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    before = model.weight.detach().clone()
    return before, loader, model, nbmgpu, optimizer, torch


@app.cell
def _(before, loader, model, nbmgpu, optimizer, torch):
    namespace = {{"model": model, "optimizer": optimizer, "loader": loader, "epochs": 2}}
    nbmgpu.run({cell!r}, namespace, gpus=2, cpu=True)
    print("trained:", not torch.equal(model.weight, before))
    return


if __name__ == "__main__":
    app.run()
"""
"""A notebook of marimo, which is a module of Python: it has functions instead of magics."""


@pytest.mark.parametrize("command", ["python", "export"])
def test_marimo(folder: Path, command: str) -> None:
    pytest.importorskip("marimo")
    (folder / "book.py").write_text(MARIMO.format(cell=CELL))
    if command == "python":
        shown = run(folder, sys.executable, "book.py")
    else:
        run(folder, sys.executable, "-m", "marimo", "export", "html", "book.py", "-o", "book.html")
        shown = (folder / "book.html").read_text()
    assert re.search(r"finished +ddp on 2 ranks \(cpu\)", shown)
    assert "trained: True" in shown
