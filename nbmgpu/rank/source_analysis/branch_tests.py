"""Finds whether a branch of the user's code uses what it has tested."""

from __future__ import annotations

import ast
import functools
import linecache
from types import FrameType, ModuleType
from typing import Any

Branch = ast.If | ast.While | ast.IfExp

NOTHING = (ast.Continue, ast.Break, ast.Pass, ast.Raise)


def decides_other_things(frame: FrameType) -> bool:
    """Return whether ``frame`` is in the test of a branch that does not use what it tests.

    ``if mask.any(): loss = loss + x[mask].mean()`` does: without such samples there is nothing to
    do.  ``if (y == 3).any(): loss = 2 * loss`` does not.
    """
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    tests = [
        branch
        for branch in _branches(source)
        if branch.test.lineno <= frame.f_lineno <= (branch.test.end_lineno or 0)
    ]
    return any(not _guards(branch, frame) for branch in tests)


@functools.lru_cache(maxsize=64)
def _branches(source: str) -> tuple[Branch, ...]:
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:  # magics of IPython
        return ()
    return tuple(node for node in nodes if isinstance(node, Branch))


def _guards(branch: Branch, frame: FrameType) -> bool:
    bodies = branch.body if isinstance(branch.body, list) else [branch.body]
    if all(isinstance(statement, NOTHING) for statement in bodies):
        return True
    tested = {name for name in _names(branch.test) if _is_value(name, frame)}
    return any(tested & _names(statement) for statement in bodies)


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_value(name: str, frame: FrameType) -> bool:
    """Return whether ``name`` is neither a module nor a function."""
    value: Any = frame.f_locals.get(name, frame.f_globals.get(name))
    return not isinstance(value, ModuleType) and not callable(value)
