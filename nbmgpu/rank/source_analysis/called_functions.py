"""The functions behind the calls of the user's code, and their source."""

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


def calls(body: list[ast.stmt]) -> Iterator[ast.Call]:
    """Yield every call in ``body``."""
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield node


def resolve(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the object a name or dotted name stands for, without running any code of it."""
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
    """Yield the functions of the user's that ``body``, run in ``frame``, calls, and where."""
    names = {**frame.f_globals, **frame.f_locals}
    for call in calls(body):
        if (function := user_function(resolve(call.func, names))) is not None:
            yield function, call


def user_function(target: Any) -> types.FunctionType | None:
    """Return the function behind something that is called, None for a library's."""
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


def tree_of_cell(cell: str) -> ast.Module:
    """Return the tree of a cell, empty if it is no Python: of magics nothing is known."""
    try:
        return ast.parse(cell)
    except SyntaxError:
        return ast.Module([], [])


def tree_of(function: Any) -> ast.Module | None:
    """Return the tree of a function, None where its source cannot be read."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
