"""Every notebook runs in a new kernel without a network, and raises only expected errors."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

REPOSITORY = Path(__file__).parents[1]
sys.path.append(str(REPOSITORY / "tools"))

from demo import execute  # noqa: E402

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
LIMIT = 180.0
"""Seconds that a notebook may take on a machine without GPUs."""

FAILS = "raises-exception"
"""The tag of cells that must raise; nbclient continues after them."""

UNEXPECTED_STDERR = re.compile(r"Traceback|Exception ignored|nbmgpu")
"""Text that a cell must not write to stderr; messages of libraries are allowed."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", ()))


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in, with downloads by libraries switched off."""
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
    for variable in ("NBMGPU_RUNS", "HF_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        (folder := tmp_path / variable.lower()).mkdir()
        monkeypatch.setenv(variable, str(folder))
    (work := tmp_path / "work").mkdir()
    return work


@each_notebook
def test_notebooks_are_valid_and_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells if cell.get("outputs")] == []
    assert [cell.id for cell in code(notebook) if cell.execution_count] == []
    assert "%load_ext nbmgpu" in code(notebook)[0].source.splitlines()
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[] if path.stem == "quickstart" else pytest.mark.matrix("notebooks", "nbmgpu"),
        )
        for path in NOTEBOOKS
    ],
)
@pytest.mark.timeout(3 * LIMIT)
def test_notebooks_run_in_a_new_kernel(path: Path, work_folder: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    start = time.monotonic()
    execute(notebook, work_folder)
    shares_machine = "PYTEST_XDIST_WORKER" in os.environ
    assert time.monotonic() - start < LIMIT * (2 if shares_machine else 1)
    for cell in code(notebook):
        raised = any(output.output_type == "error" for output in cell.outputs)
        assert raised == (FAILS in tags(cell)), cell.source
        stderr = "".join(o.text for o in cell.outputs if o.get("name") == "stderr")
        assert UNEXPECTED_STDERR.search(stderr) is None, stderr


@each_notebook
def test_links_are_valid(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    local = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []
