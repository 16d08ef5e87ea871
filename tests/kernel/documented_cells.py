"""Runs the cells of Markdown pages in a kernel, and compares their output with the pages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from kernels import ANSI, ExecutedCell, Notebook
from markdown_blocks import Block, blocks_of

RAISES = re.compile(r"^(\w+Error)\b", re.M)
"""The first word of an output that shows an exception."""


def with_output(page: Path) -> Iterator[tuple[Block, str]]:
    """Yield the cells of a page, each with the output that the page shows below it, if any."""
    blocks = [block for block in blocks_of(page) if block.kind in ("python", "text")]
    ending = Block("", "", "", 0)
    for block, following in pairwise([*blocks, ending]):
        if block.kind == "python":
            yield block, following.text if following.kind == "text" else ""


def assert_shows(shown: str, said: str) -> None:
    """Compare an output with what a page says, where ``...`` stands for anything.

    Numbers with decimals may differ by rounding: the last digits depend on the processor.
    """
    shown, said = (re.sub(r"[ \n]+", " ", text).strip() for text in (shown, said))
    pattern = re.escape(said).replace(re.escape("..."), ".*?")
    pattern = re.sub(r"\d+\\\.\d+", r"(\\d+\\.\\d+)", pattern)
    found = re.search(pattern, shown)
    assert found, f"{shown}\n  is not\n{said}"
    decimals = [float(number) for number in re.findall(r"\d+\.\d+", said)]
    for is_shown, is_said in zip(found.groups(), decimals, strict=True):
        assert math.isclose(float(is_shown), is_said, abs_tol=0.03), said


def output_of(cell: ExecutedCell) -> str:
    """Return all that a reader sees: the output, and the exception."""
    traceback = cell.reply.get("traceback", []) if cell.reply["status"] == "error" else []
    return ANSI.sub("", "\n".join([*cell.seen, *traceback]))


def run_page(kernel: Notebook, blocks: Iterator[tuple[Block, str]]) -> list[ExecutedCell]:
    """Run cells in order; compare each output, and fail where a cell raises what none shows."""
    cells = []
    for block, said in blocks:
        cell = kernel.send(block.text).wait(120)
        shown = output_of(cell)
        if cell.reply["status"] == "error":
            raises = RAISES.search(said)
            assert raises is not None, f"line {block.line}: {shown}"
            assert cell.reply["ename"] == raises[1]
        assert_shows(shown, said)
        cells.append(cell)
    return cells
