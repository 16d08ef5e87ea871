"""Detects multiplications and divisions by a batch size, in a cell or in a function."""

from __future__ import annotations

import ast
import builtins
import functools
import types
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from .called_functions import parse_cell, parse_function, resolve
from .size_expressions import (
    is_name_in,
    is_size,
    names_in,
    nodes_in,
    operands,
    reads_scalar,
    size_names,
    sized_expression,
)

ACCUMULATION = "accum"
"""In names of arguments of libraries that divide a loss by them."""


def cell_divides_by_multiple(cell: str) -> bool:
    """Return whether a cell divides by a multiple of a batch size: ``/ (2 * len(x))``."""
    return _divides_by_multiple(nodes_in(parse_cell(cell).body))


@functools.lru_cache(maxsize=256)
def function_divides_by_multiple(function: types.FunctionType) -> bool:
    """Return whether a function divides by a multiple of a batch size."""
    tree = parse_function(function)
    return tree is not None and _divides_by_multiple(list(ast.walk(tree)))


def _divides_by_multiple(nodes: list[ast.AST]) -> bool:
    sizes = size_names(nodes)
    divisors = (n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    for divisor in divisors:
        parts = list(ast.walk(divisor))
        product = any(isinstance(part, ast.Mult) for part in parts)
        if product and any(is_size(part) or is_name_in(sizes, part) for part in parts):
            return True
    return False


def cell_scales_by_size(cell: str) -> bool:
    """Return whether a cell multiplies or divides a tensor by a batch size: ``loss * len(x)``.

    Python numbers, as in ``loss.item() * len(x)``, do not count.  A call of a function that is
    given a size does, as the function may scale by it: ``mean_of(losses, len(x))``.
    """
    return _scales_by_size(nodes_in(parse_cell(cell).body))


@functools.lru_cache(maxsize=256)
def function_scales_by_size(function: types.FunctionType) -> bool:
    """Return whether a function multiplies or divides a tensor by a batch size."""
    tree = parse_function(function)
    return tree is not None and _scales_by_size(list(ast.walk(tree)))


@functools.lru_cache(maxsize=256)
def scaling_numbers(function: types.FunctionType) -> frozenset[float]:
    """Return the literals by which a function may scale something.

    These are operands of products and quotients, values of names and arguments that are named.
    """
    tree = parse_function(function)
    parts: list[ast.expr | None] = []
    for node in ast.walk(tree or ast.Module([], [])):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            parts += operands(node)
        elif isinstance(node, ast.AugAssign | ast.Assign | ast.AnnAssign | ast.keyword):
            parts.append(node.value)
    values = [each.value for each in parts if isinstance(each, ast.Constant)]
    return frozenset(float(v) for v in values if isinstance(v, int | float) and v is not True)


def cell_constants(cell: str, namespace: Mapping[str, Any]) -> set[float]:
    """Return the numbers by which a cell multiplies or divides: literals, and values of names."""
    return _constants(parse_cell(cell), dict(namespace))


def function_constants(function: types.FunctionType) -> set[float]:
    """Return the numbers by which a function multiplies or divides."""
    tree = parse_function(function)
    if tree is None:
        return set()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = function.__defaults__ or ()
    given = dict(zip(names[len(names) - len(values) :], values, strict=True))
    return _constants(tree, {**function.__globals__, **given, **(function.__kwdefaults__ or {})})


def _constants(tree: ast.Module, names: dict[str, Any]) -> set[float]:
    nodes = list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            targets = [each.id for each in node.targets if isinstance(each, ast.Name)]
            names |= dict.fromkeys(targets, node.value.value)
    parts: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
            parts += operands(node)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult | ast.Div):
            parts += operands(node.value)
        elif isinstance(node, ast.keyword) and ACCUMULATION in (node.arg or ""):
            parts.append(node.value)
    values = [n.value if isinstance(n, ast.Constant) else resolve(n, names) for n in parts]
    return {float(v) for v in values if isinstance(v, int | float) and v is not True}


def assigned_names(cell: str) -> set[str]:
    """Return the names that a cell binds by assignment."""
    return {n.id for n in names_in(parse_cell(cell)) if isinstance(n.ctx, ast.Store)}


def _scales_by_size(nodes: list[ast.AST]) -> bool:
    names = size_names(nodes)

    def is_batch_size(node: ast.AST) -> bool:
        return sized_expression(node) is not None or is_name_in(names, node)

    for node in nodes:
        left: ast.expr
        if isinstance(node, ast.AugAssign):
            left, right = node.target, node.value
        elif isinstance(node, ast.BinOp):
            left, right = node.left, node.right
        elif isinstance(node, ast.Call) and not _is_of_torch(node.func):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(map(is_batch_size, given)) and not any(map(reads_scalar, given)):
                return True
            continue
        else:
            continue
        if isinstance(node.op, ast.Mult | ast.Div) and not reads_scalar(left):
            parts = [
                *operands(right),
                *(operands(left) if isinstance(node.op, ast.Mult) else ()),
            ]
            if any(is_batch_size(part) for part in parts) and not reads_scalar(right):
                return True
    return False


def _is_of_torch(function: ast.expr) -> bool:
    """Return whether a function is, by its name, one of Python's or torch's, or a tensor's."""
    if isinstance(function, ast.Attribute):
        return any(hasattr(owner, function.attr) for owner in (torch.Tensor, torch, functional))
    return isinstance(function, ast.Name) and hasattr(builtins, function.id)
