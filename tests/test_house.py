"""The map of the house in CONTRIBUTING.md: every room is on it, and imports from those below."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nbmgpu

PACKAGE = Path(nbmgpu.__file__).parent
MAP = PACKAGE.parent / "CONTRIBUTING.md"

DOORS = {"__init__", "_version"}
"""What every room may have, and what opens into any of them when it is asked for."""

UPWARDS = {("following", "ui"), ("comparison", "ui"), ("launch", "rank")}
"""Rooms that reach up, inside functions."""


def floors() -> dict[str, int]:
    """How far down the map each room stands; those of one row stand together."""
    rows = re.findall(r"^\| (`[^|]*`) \|", MAP.read_text().split("## The house")[1], re.MULTILINE)
    listed = [(name, row) for row, cell in enumerate(rows) for name in re.findall("`(.*?)`", cell)]
    inner = [(name.removesuffix(".py").rstrip("/"), row) for name, row in listed]
    rooms = [(name, row) for name, row in inner if "/" not in name and name != "labextension"]
    assert len(dict(rooms)) == len(rooms), "a room stands there twice"
    return dict(rooms)


def test_every_room_is_on_the_map():
    rooms = {path.stem for path in PACKAGE.glob("*.py")}
    rooms |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert set(floors()) == rooms - DOORS


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The rooms that a module imports from, and whether it does when it is imported itself."""
    tree = ast.parse(path.read_text())
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    for_types = [
        n for node in tests if "TYPE_CHECKING" in ast.unparse(node.test) for n in node.body
    ]
    package = ["nbmgpu", *path.relative_to(PACKAGE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node not in for_types:
            above = package[: len(package) - node.level + 1] if node.level else []
            whole = [*above, *(node.module or "").split(".")]
            named = [[*whole, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            named = [alias.name.split(".") for alias in node.names]
        else:
            continue
        for parts in named:
            first, room, *_ = [part for part in parts if part] + [""]
            if first == "nbmgpu" and room:
                yield room, node in tree.body


def test_rooms_import_from_those_below():
    floor = floors()
    reached = set()
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for room, at_once in imports(path):
            if here in DOORS or room in DOORS or room not in floor or floor[room] >= floor[here]:
                continue
            assert not at_once, f"{path} imports {room}, which stands above {here}"
            reached.add((here, room))
    assert reached == UPWARDS
