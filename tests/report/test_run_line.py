"""The entry of a run in a list of runs."""

import pytest

from nbmgpu.report.run_line import TITLE_LENGTH, cell_title
from nbmgpu.report.views.status import run_status
from nbmgpu.runs.events import Restart


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


def test_a_run_that_the_kernel_replaces_has_not_failed(staged):
    run = staged(2)
    run.start()
    run.ranks[0].emit(Restart, reason="dropout draws for each sample")
    run.exit(0, 75)
    run.exit(1, -9)
    run.end("failed")
    states = [
        run_status(run.polled(), run.run.state, "", run.run.view.last_time + later, 0)
        for later in (1, 1000)
    ]
    assert [(s.label, s.tone, s.over) for s in states] == [
        ("starting again", "idle", False),
        ("failed", "bad", True),  # its kernel has ended
    ]
