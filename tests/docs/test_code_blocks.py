"""Code blocks of all pages are valid, with options and names that exist."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from markdown_blocks import REPOSITORY, Block, blocks_of

from nbmgpu.comparison import request
from nbmgpu.errors import NbmgpuError
from nbmgpu.options.commands import COMMANDS
from nbmgpu.options.run_options import RunOptions

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
MIGRATION = sorted((REPOSITORY / "docs" / "coming-from").glob("[a-z]*.md"))

CHECKED = {"accelerate", "lightning", "ray", "torch"}
"""Libraries of the tests' environment, whose names the examples must use as they are."""


def python_of(text: str) -> str:
    """Return a cell as plain Python; a cell magic's body counts as code."""
    if text.startswith("%%"):
        text = text.partition("\n")[2]
    return str(TransformerManager().transform_cell(text))


def with_problem_shown(page: Path, block: Block, options: str) -> None:
    """Parse a line of ``%%mgpu``, unless the block shows that it is refused."""
    command, _, rest = options.partition(" ")
    try:
        if command in ("compare", "scale"):
            request.parse(command, rest)
        else:
            RunOptions.parse(options.partition(" # ")[0])
    except NbmgpuError as error:
        problem = str(error)
    else:
        return
    assert problem.partition(":")[0] in block.text, f"{page.name}:{block.line}: {problem}"


each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY))
)


@each_page
def test_python_is_valid(page: Path) -> None:
    for block in blocks_of(page):
        if block.kind == "python":
            ast.parse(python_of(block.text), f"{page.name}:{block.line}")


@each_page
def test_lines_of_mgpu_have_valid_options(page: Path) -> None:
    for block in blocks_of(page):
        for line in block.text.splitlines():
            match line.split(maxsplit=1):
                case ["%%mgpu", options] if "..." not in options:
                    with_problem_shown(page, block, options)
                case ["%mgpu", options]:
                    assert options.split()[0] in COMMANDS, f"{page.name}:{block.line}"


def used_names(block: Block) -> Iterator[tuple[str, ast.Call | None]]:
    """Yield dotted names of libraries that a block imports or reads, with the calls of them."""
    tree = ast.parse(python_of(block.text))
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                names[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
                yield each.name, None
        elif isinstance(node, ast.ImportFrom):
            for each in node.names:
                names[each.asname or each.name] = f"{node.module}.{each.name}"
                yield f"{node.module}.{each.name}", None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and re.fullmatch(r"\w+(\.\w+)*", ast.unparse(node.func)):
            first, _, rest = ast.unparse(node.func).partition(".")
            if first in names:
                yield f"{names[first]}{'.' if rest else ''}{rest}", node


def found(name: str) -> object:
    """Return what a dotted name stands for, or raise AttributeError."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            value: object = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            value = getattr(value, word)
        return value
    raise AttributeError(name)


@pytest.mark.parametrize("page", MIGRATION, ids=lambda page: page.stem)
def test_names_and_arguments_of_other_tools_exist(page: Path) -> None:
    checked = 0
    for block in blocks_of(page):
        if block.kind != "python":
            continue
        for name, call in used_names(block):
            library = name.partition(".")[0]
            if library not in CHECKED or importlib.util.find_spec(library) is None:
                continue
            value = found(name)
            checked += 1
            if call is not None and callable(value):
                try:
                    taken = inspect.signature(value).parameters.values()
                except ValueError:
                    continue  # compiled code, such as torch.randn
                if any(each.kind is each.VAR_KEYWORD for each in taken):
                    continue
                keywords = {each.arg for each in call.keywords if each.arg}
                assert keywords <= {each.name for each in taken}, f"{page.name}: {name}"
    assert checked > 5


def test_each_page_has_both_cells() -> None:
    assert len(MIGRATION) == 7
    for page in MIGRATION:
        labels = [block.label for block in blocks_of(page) if block.label]
        assert labels[0] == "Before both cells", page.name
        assert labels[2] == "nbmgpu", page.name
