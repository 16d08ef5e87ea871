"""Where code reads the gradient of something that is no weight: ``x.grad``."""

from __future__ import annotations

import ast
import functools
import types

from .functions import tree_of, tree_of_cell

LIBRARIES = {"autograd", "func", "torch"}
"""Modules that have a function of that name."""

WEIGHTS = {"weight", "bias"}


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
    passes = [node for node in nodes if isinstance(node, ast.For | ast.comprehension)]
    parameters = {
        name.id
        for each in passes
        if "param" in ast.dump(each.iter)  # ``parameters()``, ``group["params"]``
        for name in ast.walk(each.target)
        if isinstance(name, ast.Name)
    }
    read = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    whose = (node.value for node in read if node.attr == "grad")
    return any(not _is_of_model(owner, parameters) for owner in whose)


def _is_of_model(owner: ast.expr, parameters: set[str]) -> bool:
    if isinstance(owner, ast.Attribute):
        return owner.attr in WEIGHTS | LIBRARIES
    return isinstance(owner, ast.Name) and owner.id in parameters | LIBRARIES
