"""Losses that ranks cannot weigh by their numbers of samples, and reads of a rank's own loss."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from nbmgpu.errors import StrategyError

from .refusals import refused

SUM = "`{name}` sums over samples, and ranks average gradients"
READ_IN_TEST = "line `{line}` decides by the loss before backward(), which is the rank's own"


def check_losses(trees: Iterable[ast.Module], values: Mapping[str, Any]) -> None:
    """Check that losses are means, and that no branch depends on a loss of one rank.

    Raises:
        StrategyError: they are not, or one does.
    """
    for tree in trees:
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for name in names:
            module = values.get(name)
            if isinstance(module, nn.Module) and getattr(module, "reduction", None) == "sum":
                raise StrategyError(refused(SUM.format(name=name), 'reduction="mean"'))
        for node in ast.walk(tree):
            match node:
                case ast.keyword(arg="reduction", value=ast.Constant(value="sum")):
                    raise StrategyError(refused(SUM.format(name="a loss"), 'reduction="mean"'))
        for read in reads_before_backward(tree):
            if isinstance(read, ast.If | ast.While):
                what = READ_IN_TEST.format(line=ast.unparse(read).split("\n")[0])
                raise StrategyError(refused(f"The {what}", "put it after backward()"))


def reads_before_backward(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of loops that read a loss between its assignment and ``backward``."""
    for loop in ast.walk(tree):
        if not isinstance(loop, ast.For | ast.While):
            continue
        for place, statement in enumerate(loop.body):
            for loss in _backward_names(statement):
                yield from (each for each in loop.body[:place] if _reads_number(each, loss))


def _backward_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names whose ``backward`` a simple statement calls."""
    if isinstance(statement, ast.For | ast.While | ast.If | ast.With):
        return
    for node in ast.walk(statement):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="backward")):
                yield name


def _reads_number(statement: ast.stmt, loss: str) -> bool:
    """Return whether a statement turns ``loss`` into a number, or branches on it."""
    if isinstance(statement, ast.If | ast.While):
        return any(isinstance(n, ast.Name) and n.id == loss for n in ast.walk(statement.test))
    for node in ast.walk(statement):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="item" | "detach")):
                if name == loss:
                    return True
            case ast.Call(func=ast.Name(id="float" | "print"), args=[ast.Name(id=name), *_]):
                if name == loss:
                    return True
    return False
