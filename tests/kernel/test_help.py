"""``--help`` prints the help and runs nothing, with or without a cell body."""

from __future__ import annotations

import pytest
from kernels import Notebook

from nbmgpu.frontend.help import usage
from nbmgpu.options.commands import COMMANDS
from nbmgpu.options.flags import RUN


@pytest.mark.parametrize(
    "line",
    ["%%mgpu --help", "%%mgpu -h", "%%mgpu --gpus 2 --help", "%mgpu --help", "%mgpu -h",
     "%mgpu help", "%mgpu stop --help", "%mgpu attach --help"],
)  # fmt: skip
def test_help_is_printed_and_nothing_runs(notebook: Notebook, line: str) -> None:
    runs = len(list(notebook.runs.iterdir()))
    cells = [line, f"{line}\nraise ValueError"] if line.startswith("%%") else [line]
    for cell in cells:
        text = notebook.run(cell).text()
        assert RUN.help_text() in text
        assert all(what in text for what in COMMANDS.values())
    assert len(list(notebook.runs.iterdir())) == runs


def test_comparisons_have_separate_help(notebook: Notebook) -> None:
    for cell in ("%%mgpu compare --help", "%%mgpu compare -h\nraise ValueError"):
        assert "--strategies, -s NAMES" in notebook.run(cell).text()
    assert "--gpus, -g 1,2,4" in notebook.run("%%mgpu scale --help").text()


def test_other_lines_do_not_print_help(notebook: Notebook) -> None:
    for line in ("", "--gpus 2", "--gpus 2  # not --help", "compare --gpus 2", "runs"):
        assert usage(line) == ""
    notebook.send("%%mgpu --gpus 2").fails("UsageError")
    assert notebook.run("%%mgpu --gpus 2\n'--help'").seen == ["'--help'"]
