"""Finds the functions that the user's code calls, and their syntax trees."""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from .stack_frames import LIBRARIES


def calls_in(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Yield every call in ``body``."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield node


def resolve(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the object that a name or dotted name refers to, without running code of it."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = resolve(node.value, names)
        if owner is None:
            return None
        try:
            found = inspect.getattr_static(owner, node.attr)
        except AttributeError:
            return None
        return found.__func__ if isinstance(found, staticmethod | classmethod) else found
    return None


def functions_called(
    frame: types.FrameType, body: list[ast.stmt]
) -> Iterator[tuple[types.FunctionType, ast.Call]]:
    """Yield the user's functions that ``body`` calls when it runs in ``frame``, with the calls."""
    names = {**frame.f_globals, **frame.f_locals}
    for call in calls_in(body):
        if (function := user_function(resolve(call.func, names))) is not None:
            yield function, call


def user_function(target: Any) -> types.FunctionType | None:
    """Return the function that calling ``target`` runs, None if it belongs to a library."""
    if isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, type):
        target = target.__init__  # type: ignore[misc]
    if not isinstance(target, types.FunctionType | types.MethodType):
        # A callable object: a module (its forward does not train) or something with __call__.
        call = getattr(type(target), "__call__", None)  # noqa: B004 - the function itself is wanted
        if not isinstance(call, types.FunctionType):
            return None
        target = call
    function = inspect.unwrap(target)
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return None
    module = (getattr(function, "__module__", "") or "").split(".")[0]
    if module in LIBRARIES or module in sys.stdlib_module_names - {"__main__"}:
        return None
    return function


def parse_cell(cell: str) -> ast.Module:
    """Return the syntax tree of a cell, empty if it is not plain Python (it uses magics)."""
    try:
        return ast.parse(cell)
    except SyntaxError:
        return ast.Module([], [])


def parse_function(function: Any) -> ast.Module | None:
    """Return the syntax tree of a function, None if its source is not available."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
