"""Cells on the pages "Coming from" run, and print what the pages say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from documented_cells import run_page, with_output
from kernels import Notebook, notebook_in
from markdown_blocks import REPOSITORY, Block

FOLDER = REPOSITORY / "docs" / "coming-from"
LIGHTNING = FOLDER / "lightning.md"
PAGES = sorted({*FOLDER.glob("[a-z]*.md")} - {LIGHTNING})


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel that the pages share; each makes its own objects."""
    with notebook_in(tmp_path_factory.mktemp("kernel")) as notebook:
        yield notebook


def run_ours(page: Path, kernel: Notebook) -> None:
    """Run all cells of a page but those of the other tool."""

    def ours() -> Iterator[tuple[Block, str]]:
        for block, said in with_output(page):
            if block.label in ("", "nbmgpu", "Before both cells"):
                yield block, said

    run_page(kernel, ours())
    kernel.run("import nbmgpu")
    assert kernel.value("nbmgpu.last_run.state") == "finished"
    assert kernel.value("nbmgpu.last_run.record.world_size") == 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_for_users_of_other_tools_run(page: Path, kernel: Notebook) -> None:
    run_ours(page, kernel)


@pytest.mark.matrix("docs/coming-from", "nbmgpu/rank/frameworks")
def test_cells_for_users_of_lightning_run(kernel: Notebook) -> None:
    run_ours(LIGHTNING, kernel)  # its import takes ten seconds
