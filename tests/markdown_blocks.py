"""Reads the code blocks of Markdown pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]

FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S)
LABEL = re.compile(r"\*\*([^*\n]+)\*\*\s*\Z")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        kind: the language behind the fence, or empty.
        text: what it contains.
        label: the line of bold text right above it, or empty.
        line: the number of its first line in the page.
    """

    kind: str
    text: str
    label: str
    line: int


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the code blocks of a page."""
    source = page.read_text()
    for fence in FENCE.finditer(source):
        above = LABEL.search(source[: fence.start()])
        line = source[: fence.start()].count("\n") + 2
        yield Block(fence["kind"], fence["text"], above[1] if above else "", line)
