"""Names that a cell binds only as targets of ``for`` loops."""

from __future__ import annotations

import ast


def loop_targets(code: str) -> frozenset[str]:
    """Return the names that ``code`` binds as targets of ``for`` loops and in no other way.

    What such a name holds after its loop is rarely of interest.

    Args:
        code: valid Python.
    """
    tree = ast.parse(code)
    targets: set[ast.Name] = set()
    for loop in ast.walk(tree):
        if isinstance(loop, ast.For | ast.AsyncFor):
            targets |= set(_stored(loop.target))
    others = {name.id for name in _stored(tree) if name not in targets}
    return frozenset(name.id for name in targets) - others


def _stored(tree: ast.AST) -> list[ast.Name]:
    """Return the nodes that bind a name by assignment."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return [name for name in names if isinstance(name.ctx, ast.Store)]
