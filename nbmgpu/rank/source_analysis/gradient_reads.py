"""Where code reads the gradient of something that is no weight: ``x.grad``."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Iterator

from .called_functions import tree_of, tree_of_cell

WEIGHTS = {"weight", "bias"}

HARMLESS = {"sign", "zero_"}
"""What is done with a gradient whatever its size is."""


def reads_gradients(cell: str) -> bool:
    """Tell whether a cell reads a gradient, but for those of a model's parameters."""
    return _reads(tree_of_cell(cell))


@functools.lru_cache(maxsize=256)
def function_reads_gradients(function: types.FunctionType) -> bool:
    """Tell the same of a function."""
    tree = tree_of(function)
    return tree is not None and _reads(tree)


def _reads(tree: ast.Module) -> bool:
    nodes = list(ast.walk(tree))
    parameters: set[str] = set()
    while found := {n for node in nodes for n in _given(node, parameters)} - parameters:
        parameters |= found
    harmless = {id(part) for node in nodes for part in _harmless(node)}
    read = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    whose = (n.value for n in read if n.attr == "grad" and id(n) not in harmless)
    return any(not _is_of_model(owner, parameters) for owner in whose)


def _harmless(node: ast.AST) -> list[ast.expr]:
    """Return what may be a gradient of which only the sign is read, or a function so called."""
    match node:
        case ast.Call(func=ast.Attribute(attr="grad")):  # ``torch.autograd.grad(...)``
            return [node.func]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in HARMLESS:
            return node.args
        case ast.Attribute(value=value, attr=name) if name in HARMLESS:
            return [value]
        case ast.Compare(left=left, comparators=[ast.Constant(value=None)]):
            return [left]
    return []


def _given(node: ast.AST, parameters: set[str]) -> Iterator[str]:
    """Yield the names that a statement or a loop gives to parameters, or to a list of them."""
    match node:
        case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source):
            targets = [target]
        case ast.Assign(targets=targets, value=source):
            pass
        case _:
            return
    if _names_parameters(source, parameters):
        names = (part for target in targets for part in ast.walk(target))
        yield from (name.id for name in names if isinstance(name, ast.Name))


def _is_of_model(owner: ast.expr, parameters: set[str]) -> bool:
    if isinstance(owner, ast.Attribute):
        return owner.attr in WEIGHTS
    return _names_parameters(owner, parameters)


def _names_parameters(node: ast.expr, parameters: set[str]) -> bool:
    """Tell whether it is ``parameters()``, ``group["params"]`` or the like, or a name for it."""
    known = isinstance(node, ast.Name) and node.id in parameters
    return known or "param" in ast.dump(node)
