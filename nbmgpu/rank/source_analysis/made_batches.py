"""Finds the batches that a cell makes itself, without a DataLoader."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader

from .called_functions import calls_in, parse_cell
from .size_expressions import names_in


def made_batches(cell: str, namespace: Mapping[str, Any]) -> list[str]:
    """Return the names of the batches on which a loop of ``cell`` trains, as ``["x", "y"]``.

    These are names that the innermost loop with a backward pass binds to an index of something, or
    to what a function returns (``get_batch()``), and passes to a call, such as the model's.  Empty
    if there are none: a loop may also pass ``X[i : i + 8]`` without a name.
    """
    body = _training_body(cell)
    functions = {n for n, value in namespace.items() if isinstance(value, types.FunctionType)}
    made: dict[str, None] = {}
    derived: set[str] = set()
    for names, value in _assignments(body):
        indexed = _indexed(value)
        read = {node.id for node in names_in(indexed or value)}
        if read & (made.keys() | derived):
            derived.update(names)
        elif indexed is not None or _called_name(value) in functions:
            made.update(dict.fromkeys(names))
    given = [argument for call in calls_in(body) for argument in call.args]
    passed = {name.id for argument in given for name in names_in(argument)}
    return [name for name in made if name in passed]


def unnamed_batches(cell: str, namespace: Mapping[str, Any]) -> list[str]:
    """Return what the same loop passes to calls without a name, as ``["X[i:i + 8]", "Y[index]"]``.

    These are parts of tensors of ``namespace``.
    """
    found: list[ast.Subscript] = []
    for argument in (each for call in calls_in(_training_body(cell)) for each in call.args):
        match argument:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice() | ast.Name()):
                if isinstance(namespace.get(name), torch.Tensor):
                    found.append(argument)
    found.sort(key=lambda each: (each.lineno, each.col_offset))
    return list(dict.fromkeys(map(ast.unparse, found)))


def iterates_over_loader(cell: str, namespace: Mapping[str, Any]) -> bool:
    """Return whether a loop of ``cell`` is over a DataLoader of ``namespace``."""
    loops = (node.iter for node in ast.walk(parse_cell(cell)) if isinstance(node, ast.For))
    return any(
        isinstance(namespace.get(name.id), DataLoader) for each in loops for name in names_in(each)
    )


def _training_body(cell: str) -> list[ast.stmt]:
    """Return the body of the innermost loop with a backward pass; empty if there is none."""
    loops = [node for node in ast.walk(parse_cell(cell)) if isinstance(node, ast.For | ast.While)]
    training = [loop for loop in loops if _has_backward(loop.body)]
    return training[-1].body if training else []  # in breadth-first order


def _has_backward(body: list[ast.stmt]) -> bool:
    functions = (call.func for call in calls_in(body))
    return any(isinstance(f, ast.Attribute) and f.attr == "backward" for f in functions)


def _assignments(body: list[ast.stmt]) -> Iterator[tuple[list[str], ast.expr]]:
    """Yield the names and the value of each assignment, those of a tuple one by one."""
    for node in (n for statement in body for n in ast.walk(statement)):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for part, each in zip(target.elts, value.elts, strict=False):
                yield list(_stored(part)), each
        else:
            yield list(_stored(target)), value


def _stored(target: ast.expr) -> Iterator[str]:
    """Yield the plain names that an assignment to ``target`` binds."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return (part.id for part in parts if isinstance(part, ast.Name))


def _indexed(value: ast.expr) -> ast.expr | None:
    """Return ``X`` of ``X[i]``, perhaps on another device; for a stack of those, the stack."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in ("stack", "cat") and value.args:
            is_list = isinstance(value.args[0], ast.ListComp | ast.List)
            return value if is_list else None
        value = value.func.value
    return value.value if isinstance(value, ast.Subscript) else None


def _called_name(value: ast.expr) -> str:
    """Return the name of the function whose result ``value`` is, empty if it is none."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id
    return ""
