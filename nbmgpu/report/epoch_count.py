"""The number of epochs of a cell, as far as its source shows."""

from __future__ import annotations

import ast


def epochs_in(cell: str) -> int:
    """Return N of the only loop ``for ... in range(N)`` around another loop, else 0.

    ``N`` is an integer, or a name that the cell assigns once, to an integer.
    """
    try:
        tree = ast.parse(cell)
    except SyntaxError:
        return 0  # magics and shell lines
    loops = [node for node in tree.body if isinstance(node, ast.For) and _contains_loop(node)]
    if len(loops) != 1:
        return 0
    match loops[0].iter:
        case ast.Call(func=ast.Name(id="range"), args=[bound], keywords=[]):
            return _number(bound, tree)
    return 0


def _contains_loop(outer: ast.For) -> bool:
    return any(isinstance(node, ast.For) for part in outer.body for node in ast.walk(part))


def _number(bound: ast.expr, tree: ast.Module) -> int:
    match bound:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            stores = [
                n for n in ast.walk(tree)
                if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
            ]  # fmt: skip
            set_to = [
                s.value for s in tree.body
                if isinstance(s, ast.Assign) and len(stores) == 1 and s.targets == stores
            ]  # fmt: skip
            if set_to and isinstance(set_to[0], ast.Constant) and type(set_to[0].value) is int:
                return set_to[0].value
    return 0
