"""Detects reads of ``x.grad`` where ``x`` is not a parameter of a model."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Iterator

from .called_functions import parse_cell, parse_function

PARAMETER_ATTRIBUTES = {"weight", "bias"}

SCALE_INVARIANT = {"sign", "zero_"}
"""Operations on a gradient whose result does not depend on its magnitude."""


def cell_reads_gradients(cell: str) -> bool:
    """Return whether a cell reads a gradient of anything but a model's parameters."""
    return _reads_gradients(parse_cell(cell))


@functools.lru_cache(maxsize=256)
def function_reads_gradients(function: types.FunctionType) -> bool:
    """Return whether a function reads a gradient of anything but a model's parameters."""
    tree = parse_function(function)
    return tree is not None and _reads_gradients(tree)


def _reads_gradients(tree: ast.Module) -> bool:
    nodes = list(ast.walk(tree))
    parameters: set[str] = set()
    while found := {n for node in nodes for n in _parameter_names(node, parameters)} - parameters:
        parameters |= found
    ignored = {id(part) for node in nodes for part in _scale_invariant_reads(node)}
    reads = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    owners = (n.value for n in reads if n.attr == "grad" and id(n) not in ignored)
    return any(not _is_parameter(owner, parameters) for owner in owners)


def _scale_invariant_reads(node: ast.AST) -> list[ast.expr]:
    """Return reads of a gradient's sign or existence, and ``torch.autograd.grad`` functions."""
    match node:
        case ast.Call(func=ast.Attribute(attr="grad")):  # ``torch.autograd.grad(...)``
            return [node.func]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in SCALE_INVARIANT:
            return node.args
        case ast.Attribute(value=value, attr=name) if name in SCALE_INVARIANT:
            return [value]
        case ast.Compare(left=left, comparators=[ast.Constant(value=None)]):
            return [left]
    return []


def _parameter_names(node: ast.AST, parameters: set[str]) -> Iterator[str]:
    """Yield the names that a statement or loop binds to parameters, or to a list of them."""
    match node:
        case ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source):
            targets = [target]
        case ast.Assign(targets=targets, value=source):
            pass
        case _:
            return
    if _refers_to_parameters(source, parameters):
        names = (part for target in targets for part in ast.walk(target))
        yield from (name.id for name in names if isinstance(name, ast.Name))


def _is_parameter(owner: ast.expr, parameters: set[str]) -> bool:
    if isinstance(owner, ast.Attribute):
        return owner.attr in PARAMETER_ATTRIBUTES
    return _refers_to_parameters(owner, parameters)


def _refers_to_parameters(node: ast.expr, parameters: set[str]) -> bool:
    """Return whether a node is ``parameters()``, ``group["params"]`` or the like, or its name."""
    known = isinstance(node, ast.Name) and node.id in parameters
    return known or "param" in ast.dump(node)
