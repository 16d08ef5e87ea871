"""The entry of a run in a list of runs."""

import pytest

from nbmgpu.report.run_line import TITLE_LENGTH, cell_title


@pytest.mark.parametrize(
    ("cell", "title"),
    [
        ("for x, y in loader:\n    pass\n", "for x, y in loader:"),
        ("# %%mgpu --strategy ddp\n\n# Train the model\nfor x in y:\n", "Train the model"),
        ("import time\nfrom a import b\nmodel.train()\n", "model.train()"),
        ("# ----\n    \nx = 1", "x = 1"),
        ("import time", "import time"),
        ("", ""),
        ("\x1b[31mred\x1b[0m = 1", "red = 1"),
    ],
)
def test_the_title_is_the_first_comment_or_statement_after_imports(cell, title):
    assert cell_title(cell) == title


def test_a_long_title_is_shortened():
    title = cell_title("x" * 200)
    assert (len(title), title[-1]) == (TITLE_LENGTH, "…")
