"""``--help``: shown and not run, with or without a cell below it."""

from __future__ import annotations

import pytest
from kernels import Notebook

from nbmgpu.frontend.help import usage
from nbmgpu.options.flags import COMMANDS, RUN


@pytest.mark.parametrize(
    "line",
    ["%%mgpu --help", "%%mgpu -h", "%%mgpu --gpus 2 --help", "%mgpu --help", "%mgpu -h",
     "%mgpu help", "%mgpu stop --help", "%mgpu attach --help"],
)  # fmt: skip
def test_help_is_shown_and_nothing_runs(notebook: Notebook, line: str) -> None:
    runs = len(list(notebook.runs.iterdir()))
    cells = [line, f"{line}\nraise ValueError"] if line.startswith("%%") else [line]
    for cell in cells:
        text = notebook.run(cell).text()
        assert RUN.help_text() in text
        assert all(what in text for what in COMMANDS.values())
    assert len(list(notebook.runs.iterdir())) == runs


def test_comparisons_have_help_of_their_own(notebook: Notebook) -> None:
    for cell in ("%%mgpu compare --help", "%%mgpu compare -h\nraise ValueError"):
        assert "--strategies, -s NAMES" in notebook.run(cell).text()
    assert "--gpus, -g 1,2,4" in notebook.run("%%mgpu scale --help").text()


def test_other_lines_ask_for_no_help(notebook: Notebook) -> None:
    for line in ("", "--gpus 2", "--gpus 2  # not --help", "compare --gpus 2", "runs"):
        assert usage(line) == ""
    notebook.send("%%mgpu --gpus 2").fails("UsageError")
    assert notebook.run("%%mgpu --gpus 2\n'--help'").seen == ["'--help'"]
