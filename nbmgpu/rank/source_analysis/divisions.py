"""Where code multiplies or divides by the size of a batch: a cell's, or a function's."""

from __future__ import annotations

import ast
import functools
import types

from .called_functions import tree_of, tree_of_cell
from .size_expressions import (
    is_one_of,
    is_size,
    named_sizes,
    names_in,
    nodes_in,
    operands,
    reads_a_loss,
    whose_size,
)


def divides_by_multiple(cell: str) -> bool:
    """Tell whether a cell divides by a product with a batch's size: ``/ (2 * len(x))``."""
    return _divides_by_multiple(nodes_in(tree_of_cell(cell).body))


@functools.lru_cache(maxsize=256)
def function_divides_by_multiple(function: types.FunctionType) -> bool:
    """Tell the same of a function."""
    tree = tree_of(function)
    return tree is not None and _divides_by_multiple(list(ast.walk(tree)))


def _divides_by_multiple(nodes: list[ast.AST]) -> bool:
    sizes = named_sizes(nodes)
    divisors = (n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    for divisor in divisors:
        parts = list(ast.walk(divisor))
        product = any(isinstance(part, ast.Mult) for part in parts)
        if product and any(is_size(part) or is_one_of(sizes, part) for part in parts):
            return True
    return False


def by_size(cell: str) -> bool:
    """Tell whether a cell multiplies or divides a loss by a batch's size: ``loss * len(x)``.

    Not a number, as ``loss.item() * len(x)`` is.
    """
    return _by_size(nodes_in(tree_of_cell(cell).body))


@functools.lru_cache(maxsize=256)
def function_by_size(function: types.FunctionType) -> bool:
    """Tell the same of a function."""
    tree = tree_of(function)
    return tree is not None and _by_size(list(ast.walk(tree)))


def assigned(cell: str) -> set[str]:
    """Return the names that a cell gives to values."""
    return {n.id for n in names_in(tree_of_cell(cell)) if isinstance(n.ctx, ast.Store)}


def _by_size(nodes: list[ast.AST]) -> bool:
    named = named_sizes(nodes)

    def is_a_size(node: ast.AST) -> bool:
        return whose_size(node) is not None or is_one_of(named, node)

    for node in nodes:
        left: ast.expr
        if isinstance(node, ast.AugAssign):
            left, right = node.target, node.value
        elif isinstance(node, ast.BinOp):
            left, right = node.left, node.right
        else:
            continue
        if isinstance(node.op, ast.Mult | ast.Div) and not reads_a_loss(left):
            parts = [
                *operands(right),
                *(operands(left) if isinstance(node.op, ast.Mult) else ()),
            ]
            if any(is_a_size(part) for part in parts) and not reads_a_loss(right):
                return True
    return False
