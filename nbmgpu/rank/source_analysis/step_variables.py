"""Finds the variables of a cell that every step of a training loop binds, and nothing else does.

What such a variable holds after the loop is what the last step has bound to it, by the same
statement as in the steps before.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType

from .loader_loops import enclosing_loop

SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
"""Statements and expressions whose names are their own, besides those that are ``global``."""

ASSIGNMENTS = ast.Assign | ast.AnnAssign | ast.AugAssign


@dataclass(frozen=True)
class StepVariables:
    """Variables of a training loop.

    Attributes:
        bound: every step binds them, and nothing else in the cell does.
        read_later: of these, and of the names that the loop binds to a batch, those that are read
            elsewhere in the cell.  A step binds them before it reads them.
    """

    bound: frozenset[str] = frozenset()
    read_later: frozenset[str] = frozenset()


NO_VARIABLES = StepVariables()


def step_variables(frame: FrameType | None) -> StepVariables:
    """Return those of the loop that begins in ``frame`` or its callers.

    A function's variables are not the cell's: of a loop in a function there are none.
    """
    frame, loop = enclosing_loop(frame)
    if frame is None or loop is None or frame.f_code.co_name != "<module>":
        return NO_VARIABLES
    return _find("".join(linecache.getlines(frame.f_code.co_filename)), loop.first_line)


@functools.lru_cache(maxsize=64)
def _find(source: str, line: int) -> StepVariables:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return NO_VARIABLES
    nodes = list(_in_module_scope(tree))
    loops = [node for node in nodes if isinstance(node, ast.For) and node.lineno == line]
    if len(loops) != 1:
        return NO_VARIABLES
    (loop,) = loops
    in_each_step = Counter(_assigned(loop.body))
    anywhere = Counter(name for node in nodes for name in _bound(node))
    bound = {name for name, count in in_each_step.items() if anywhere[name] == count}
    inside = {id(node) for node in ast.walk(loop)}
    read = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and id(node) not in inside and isinstance(node.ctx, ast.Load)
    }
    targets = {name for node in ast.walk(loop.target) for name in _bound(node)}
    fresh = targets | {name for name in bound if not _reads_older(loop.body, name)}
    return StepVariables(frozenset(bound), frozenset(fresh & read))


def _in_module_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield ``node`` and what is in it, without the bodies of functions and classes."""
    yield node
    if isinstance(node, SCOPES):
        yield from (part for part in ast.walk(node) if isinstance(part, ast.Global))
        return
    for child in ast.iter_child_nodes(node):
        yield from _in_module_scope(child)


def _assigned(block: Iterable[ast.stmt]) -> Iterator[str]:
    """Yield the name of each assignment that is always executed if ``block`` is."""
    for statement in block:
        if isinstance(statement, ast.With | ast.AsyncWith):
            yield from _assigned(statement.body)
        elif isinstance(statement, ASSIGNMENTS):
            yield from (name for node in ast.walk(statement) for name in _bound(node))


def _bound(node: ast.AST) -> Iterator[str]:
    """Yield the names that ``node`` itself binds or deletes."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.Global):
        yield from node.names
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name


def _reads_older(block: Iterable[ast.stmt], name: str) -> bool:
    """Return whether ``block`` may read what ``name`` had before it."""
    for statement in block:
        if isinstance(statement, ast.With | ast.AsyncWith) and not any(
            _mentions(item, name) for item in statement.items
        ):
            if any(_mentions(each, name) for each in statement.body):
                return _reads_older(statement.body, name)
        elif _mentions(statement, name):
            is_first = isinstance(statement, ast.Assign | ast.AnnAssign)
            return not is_first or _loads(statement, name)
    return False


def _mentions(tree: ast.AST, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(tree))


def _loads(tree: ast.AST, name: str) -> bool:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name)
    return any(isinstance(node.ctx, ast.Load) for node in names)
