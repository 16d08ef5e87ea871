"""The layers in CONTRIBUTING.md: every package is listed, and imports only from those below it."""

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import nbmgpu

PACKAGE = Path(nbmgpu.__file__).parent
CONTRIBUTING = PACKAGE.parent / "CONTRIBUTING.md"

UNLAYERED = {"__init__", "_version"}
"""Modules that any package may import, and that import any package lazily."""


def layers() -> dict[str, int]:
    """Return the row in the table of each package and top-level module; one row is one layer."""
    section = CONTRIBUTING.read_text().split("## Architecture")[1]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, re.MULTILINE)
    listed = [(name, row) for row, cell in enumerate(rows) for name in re.findall("`(.*?)`", cell)]
    names = [name.removesuffix(".py").rstrip("/") for name, _ in listed]
    assert len(set(names)) == len(names), "a package is listed twice"
    return dict(zip(names, (row for _, row in listed), strict=True))


def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that ``name`` imports, anywhere but for types alone."""
    path = known[name]
    tree = ast.parse(path.read_text())
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    for_types = {
        statement
        for block in blocks
        if "TYPE_CHECKING" in ast.unparse(block.test)
        for statement in block.body
    }
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            targets = [f"{source}.{alias.name}" for alias in node.names]
            yield from {each if each in known else source for each in targets} & known.keys()
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & known.keys()


def graph() -> dict[str, set[str]]:
    """Return which modules each module imports."""
    known = modules()
    return {name: set(imports(name, known)) - {name} for name in known}


def layer_of(name: str) -> str:
    """Return the package or top-level module that a module belongs to."""
    return [*name.split("."), "__init__"][1]


def test_every_package_is_listed() -> None:
    assert set(layers()) == {layer_of(name) for name in modules()} - UNLAYERED


def test_packages_import_only_from_those_below() -> None:
    layer = layers()
    upwards = [
        f"{name} imports {target}"
        for name, targets in graph().items()
        for target in targets
        if not {layer_of(name), layer_of(target)} & UNLAYERED
        and layer[layer_of(target)] < layer[layer_of(name)]
    ]
    assert not upwards, "\n".join(sorted(upwards))


def test_there_are_no_import_cycles() -> None:
    edges = {name: targets - {"nbmgpu"} for name, targets in graph().items()}
    del edges["nbmgpu"]
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail("A circle of imports: " + " -> ".join(error.args[1]))


MOST_LINES = 350
MOST_ATTRIBUTES = 14
MOST_TOP_LEVEL_MODULES = 10


def attributes(definition: ast.ClassDef) -> set[str]:
    """Return the names that a class, or a method of it through ``self``, assigns."""
    found = {
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    for statement in definition.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for target in targets:
            found |= {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    return found


def test_modules_are_short() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in modules().items()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_few_modules_lie_at_the_top_level() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_TOP_LEVEL_MODULES


def test_classes_have_few_attributes() -> None:
    counts = {
        f"{name}.{node.name}": len(attributes(node))
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert {name: count for name, count in counts.items() if count > MOST_ATTRIBUTES} == {}
