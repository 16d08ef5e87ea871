"""Which parts of a script are at its top level, and which in its ``main``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .definitions import Item
from .training_objects import assigned_name
from .values import literal_value


@dataclass(frozen=True)
class Placement:
    """The parts of a script by where they are.

    Attributes:
        top: functions, classes and constants.
        main: all else.
        shared: names that ``main`` binds, and that functions at the top level read.
    """

    top: tuple[Item, ...]
    main: tuple[Item, ...]
    shared: tuple[str, ...]


def place(items: Sequence[Item], bound_in_cell: frozenset[str], cell: ast.Module) -> Placement:
    """Place functions, classes and constants at the top level, where that is possible.

    What needs something of ``main`` when it is executed, or is bound again by the cell, has to be
    in ``main``.
    """
    top = [item for item in items if _belongs_to_top(item)]
    while True:
        main = [item for item in items if item not in top]
        in_main = bound_in_cell.union(*(item.binds for item in main))
        stays = [i for i in top if not (i.binds | _reads_at_once(i)) & in_main]
        if len(stays) == len(top):
            break
        top = stays
    read = {name for item in top for name in (item.statement.reads if item.statement else ())}
    declared = set(_declared_global([cell, *(i.statement.node for i in items if i.statement)]))
    shared = (read | declared) & in_main
    return Placement(tuple(top), tuple(main), tuple(sorted(shared)))


def _belongs_to_top(item: Item) -> bool:
    if item.stored:
        return not item.stored.file
    statement = item.statement
    if statement is None:
        return False
    value = getattr(statement.node, "value", None)
    is_constant = bool(assigned_name(statement.node)) and literal_value(value)[0]
    return statement.is_definition or (is_constant and not isinstance(value, ast.List | ast.Dict))


def _reads_at_once(item: Item) -> frozenset[str]:
    return item.statement.reads_at_once if item.statement else frozenset()


def _declared_global(trees: Iterable[ast.AST]) -> Iterable[str]:
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                yield from node.names
