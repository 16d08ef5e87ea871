"""Cells on the pages "Coming from" run, and print what the pages say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from documented_cells import run_page, with_output
from kernels import Notebook, notebook_in
from markdown_blocks import REPOSITORY, Block

PAGES = sorted((REPOSITORY / "docs" / "coming-from").glob("[a-z]*.md"))


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A kernel that the pages share; each makes its own objects."""
    with notebook_in(tmp_path_factory.mktemp("kernel")) as notebook:
        yield notebook


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cells_for_users_of_other_tools_run(page: Path, kernel: Notebook) -> None:
    def ours() -> Iterator[tuple[Block, str]]:
        for block, said in with_output(page):
            if block.label in ("", "nbmgpu", "Before both cells"):
                yield block, said

    run_page(kernel, ours())
    kernel.run("import nbmgpu")
    assert kernel.value("nbmgpu.last_run.state") == "finished"
    assert kernel.value("nbmgpu.last_run.record.world_size") == 2
