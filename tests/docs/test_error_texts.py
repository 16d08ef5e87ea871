"""Each message on the page about troubleshooting exists in the source."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_blocks import REPOSITORY

import nbmgpu
from nbmgpu import errors
from nbmgpu.report.error_hints import KNOWN

PAGE = REPOSITORY / "docs" / "troubleshooting.md"
OTHERS = "## Errors of torch and other libraries"
NAME = re.compile(r"^[\w.]+(Error|Interrupt): ")
OF_IPYTHON = "UsageError"

SHORTEST = 9
"""Characters of a piece of the source that counts as part of a message, and not as chance."""

LONGEST_VALUE = 40
"""Characters between two such pieces: a name, a path, a number."""


def quoted(part: str) -> list[str]:
    """Return the messages in the first columns of a part's tables."""
    rows = re.findall(r"^\| (``? ?.+? ?``?) \|", part, re.M)
    return [re.sub(r"^`` ?| ?``$|^`|`$", "", row) for row in rows]


def pieces_of(node: ast.AST) -> Iterator[str]:
    """Yield the constant pieces of a text in the source: those between its values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from re.split(r"\{[^{}]*\}", node.value)


@functools.cache
def pieces() -> tuple[str, ...]:
    """Return the pieces of all texts in the source, longest first."""
    found: set[str] = set()
    for path in Path(nbmgpu.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            found.update(piece.rstrip(".") for piece in pieces_of(node))
    return tuple(sorted((each for each in found if len(each) >= SHORTEST), key=len, reverse=True))


def exists(message: str) -> bool:
    """Return whether a message consists of pieces of the source, with values between them."""
    covered = [False] * len(message)
    for piece in pieces():
        if piece[:SHORTEST] not in message:
            continue
        start = message.find(piece)
        if start < 0:  # a message on the page may end within a piece
            ends = (n for n in range(min(len(piece), len(message)), SHORTEST - 1, -1))
            length = next((n for n in ends if message.endswith(piece[:n])), 0)
            start = len(message) - length
        end = min(start + len(piece), len(message))
        covered[start:end] = [True] * (end - start)
    gaps = "".join("x" if each else " " for each in covered).split("x")
    return sum(covered) >= 0.45 * len(message) and max(map(len, gaps)) <= LONGEST_VALUE


OWN = quoted(PAGE.read_text().partition(OTHERS)[0])
OF_LIBRARIES = quoted(PAGE.read_text().partition(OTHERS)[2])


@pytest.mark.parametrize("message", OWN)
def test_messages_exist(message: str) -> None:
    if message.startswith(OF_IPYTHON):
        return
    if kind := re.match(r"(\w+Error): ", message):
        assert hasattr(errors, kind[1]), message
    assert exists(NAME.sub("", message))


@pytest.mark.parametrize("message", [each for each in OWN if not each.startswith(OF_IPYTHON)])
def test_the_same_words_in_another_order_do_not_exist(message: str) -> None:
    words = NAME.sub("", message).split()
    assert not exists(" ".join([*words[1::2], *words[::2]]))


def test_every_error_is_on_the_page() -> None:
    page = PAGE.read_text()
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.NbmgpuError) and kind is not errors.NbmgpuError:
            assert name in page, name


@pytest.mark.parametrize("message", OF_LIBRARIES)
def test_causes_of_errors_of_libraries_are_known(message: str) -> None:
    assert any(re.search(pattern, message, re.IGNORECASE) for pattern in KNOWN), message


def test_the_page_quotes_enough() -> None:
    assert len(OWN) > 40
    assert len(OF_LIBRARIES) > 10
