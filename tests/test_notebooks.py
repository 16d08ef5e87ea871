"""Every notebook runs from clean, without a network, and shows what its text promises."""

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
"""The tag of cells that are to fail; nbclient goes on after them."""

OWN_NOISE = re.compile(r"Traceback|Exception ignored|nbmgpu")
"""What a cell may not write to stderr; what libraries have to say there is theirs."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", ()))


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to run in, and no network: what libraries would download has a substitute."""
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
    for variable in ("NBMGPU_RUNS", "HF_HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        (folder := tmp_path / variable.lower()).mkdir()
        monkeypatch.setenv(variable, str(folder))
    (work := tmp_path / "work").mkdir()
    return work


@each_notebook
def test_it_is_committed_as_a_reader_should_find_it(path: Path) -> None:
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
def test_it_runs_from_clean(path: Path, alone: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    began = time.monotonic()
    execute(notebook, alone)
    beside_others = "PYTEST_XDIST_WORKER" in os.environ
    assert time.monotonic() - began < LIMIT * (2 if beside_others else 1)
    for cell in code(notebook):
        raised = any(output.output_type == "error" for output in cell.outputs)
        assert raised == (FAILS in tags(cell)), cell.source
        said = "".join(o.text for o in cell.outputs if o.get("name") == "stderr")
        assert OWN_NOISE.search(said) is None, said


@each_notebook
def test_its_links_lead_somewhere(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    local = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
    assert [link for link in local if not (path.parent / link).exists()] == []
