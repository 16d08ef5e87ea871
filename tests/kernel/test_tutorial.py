"""The cells of the tutorial run in order, and print what the tutorial says."""

from __future__ import annotations

import re
from pathlib import Path

from documented_cells import run_page, with_output
from kernels import WIDGET, notebook_in
from markdown_blocks import REPOSITORY


def test_the_tutorial_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    with notebook_in(tmp_path) as kernel:
        cells = run_page(kernel, with_output(REPOSITORY / "docs" / "tutorial.md"))
    assert len(cells) > 15
    runs = [cell for cell in cells if re.match(r"%%mgpu( -|$)", cell.source, re.M)]
    started = [cell for cell in runs if "optimiser" not in cell.source]
    for cell in started:
        panels = [output for output in cell.of("display_data") if WIDGET in output.content["data"]]
        assert len(panels) == 1, cell.source
