"""Execute a notebook in a real Jupyter kernel and print its result.

    python tools/demo.py NOTEBOOK EXECUTED

The result is the output of the cells tagged ``result``.  A cell that fails ends the run with its
traceback; the executed notebook is written anyway.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run every cell with ``folder`` as working directory; outputs go into ``notebook``.

    Raises:
        CellExecutionError: a cell failed.
    """
    count = len(notebook.cells)

    def print_title(cell: NotebookNode, cell_index: int) -> None:
        if cell.cell_type == "code":
            title = cell.source.partition("\n")[0]
            print(f"  cell {cell_index + 1:2} of {count}  {title}", flush=True)

    NotebookClient(
        notebook,
        timeout=600,
        resources={"metadata": {"path": str(folder)}},
        on_cell_start=print_title,
        extra_arguments=["--log-level=ERROR"],  # no warning that local ports are not encrypted
    ).execute()


def results(notebook: NotebookNode) -> list[str]:
    """Return the text output of the cells tagged ``result``."""
    return [
        output.data["text/plain"]
        for cell in notebook.cells
        if "result" in cell.metadata.get("tags", ())
        for output in cell.outputs
        if "text/plain" in output.get("data", {})
    ]


def main(source: Path, executed: Path) -> int:
    """Execute a notebook, print its results and its new path; return the exit status."""
    notebook = nbformat.read(source, as_version=4)
    print(f"Executing {source} in a Jupyter kernel", flush=True)
    began = time.monotonic()
    error = None
    try:
        execute(notebook, source.parent)
    except CellExecutionError as failed:
        error = failed
    executed.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, executed)
    print("", *results(notebook), "", sep="\n")
    if error:
        print(error, file=sys.stderr)
    print(f"{time.monotonic() - began:.0f} s. The executed notebook: {executed.resolve()}")
    return 1 if error else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
