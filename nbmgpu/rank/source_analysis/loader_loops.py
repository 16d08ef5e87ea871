"""Finds the loop over a data loader from the frame that requests batches."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
import sys
import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader

from .called_functions import resolve
from .stack_frames import LIBRARIES, frame_outside

ITERATOR_WRAPPERS = {
    "enumerate", "zip", "zip_longest", "islice", "chain", "map", "filter", "cycle"
}  # fmt: skip
"""Functions that call ``iter(loader)`` at once, for a loop that may start later."""

PROGRESS_BARS = {"tqdm", "tqdm_notebook", "track", "progress_bar"}
"""Functions that yield the items of their argument one by one."""


def is_cycled(loader: Any, frame: types.FrameType | None) -> bool | None:
    """Return whether the loop in ``frame`` passes ``loader`` to ``itertools.cycle`` alone.

    ``cycle`` iterates over the loader once and keeps the batches.

    Returns:
        True or False; None if the loop has a ``cycle`` and its source does not show of what.
    """
    frame = frame_outside(frame, LIBRARIES)
    if frame is None:
        return False
    loop, line = current_loop(frame)
    iterables = loop.iterables if loop is not None else _parse_expressions(line.strip())
    names = {**frame.f_globals, **frame.f_locals}
    calls = [node for node in iterables if isinstance(node, ast.Call)]
    cycles = [call for call in calls if resolve(call.func, names) is itertools.cycle]
    cycled = [argument for call in cycles for argument in call.args]
    within = [node for argument in cycled for node in ast.walk(argument)]
    found = [node for node in iterables if resolve(node, names) is loader]
    if found:
        if all(node in cycled for node in found):
            return True
        return None if any(node in within for node in found) else False
    others = (list, tuple, dict, range, str, DataLoader)
    return False if all(isinstance(resolve(node, names), others) for node in cycled) else None


def zips_loaders(frame: types.FrameType | None) -> bool:
    """Return whether the loop in ``frame`` gets batches of several loaders at once, by ``zip``."""
    _, loop = enclosing_loop(frame)
    calls = [node for node in (loop.iterables if loop else ()) if isinstance(node, ast.Call)]
    return any(isinstance(c.func, ast.Name) and c.func.id == "zip" for c in calls)


def _parse_expressions(line: str) -> tuple[ast.expr, ...]:
    """Return every expression of a one-line statement."""
    try:
        return _expressions_in([ast.parse(line)])
    except SyntaxError:
        return ()


def yields_batches(frame: types.FrameType, loop: Loop) -> bool:
    """Return whether a loop runs in a generator and yields batches to an outer loop."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and _has_yield(loop.body)


def enclosing_loop(frame: types.FrameType | None) -> tuple[types.FrameType | None, Loop | None]:
    """Return the innermost frame of the user's code, starting at ``frame``, and its loop."""
    frame = frame_outside(frame, LIBRARIES)
    return frame, None if frame is None else current_loop(frame)[0]


def current_loop(frame: types.FrameType) -> tuple[Loop | None, str]:
    """Return the loop that ``frame`` is about to enter, and the text of its current line."""
    lines = linecache.getlines(frame.f_code.co_filename)
    line = lines[frame.f_lineno - 1] if frame.f_lineno <= len(lines) else ""
    source = "".join(lines)
    return _loop_at(source, frame.f_lineno) or _later_loop(source, frame.f_lineno), line


def _has_yield(body: list[ast.stmt]) -> bool:
    nodes = (node for statement in body for node in ast.walk(statement))
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes)


@dataclass(frozen=True, eq=False)
class Loop:
    """A ``for`` loop or comprehension.

    Attributes:
        first_line, last_line: the lines of its header.
        body: its statements.
        targets: the names that it binds to each item.
        iterables: every expression within what it iterates over.
        rest: of a loop over ``nbmgpu.share``, what follows it in its block: it belongs to the step,
            as its names still hold the shard.  Loops that bind the names anew are left out.
    """

    first_line: int
    last_line: int
    body: list[ast.stmt]
    targets: frozenset[str] = frozenset()
    iterables: tuple[ast.expr, ...] = ()
    rest: tuple[ast.stmt, ...] = ()

    @property
    def with_rest(self) -> Loop:
        """The same loop with ``rest`` in its body."""
        return replace(self, body=[*self.body, *self.rest], rest=()) if self.rest else self


@functools.lru_cache(maxsize=64)
def _loops_in(source: str) -> list[Loop]:
    """Return every loop and comprehension in ``source``."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found = []
    following = _following(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor):
            names = {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
            last = node.iter.end_lineno or node.lineno
            iterables = _expressions_in([node.iter])
            after = following[id(node)] if any(map(_is_share, iterables)) else []
            rest = tuple(each for each in after if not _rebinds(each, names))
            found.append(Loop(node.lineno, last, node.body, frozenset(names), iterables, rest))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            values = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            body: list[ast.stmt] = [ast.Expr(part) for part in values]
            iterables = _expressions_in(part.iter for part in node.generators)
            last = node.end_lineno or node.lineno
            found.append(Loop(node.lineno, last, body, iterables=iterables))
    return found


def _following(tree: ast.AST) -> dict[int, list[ast.stmt]]:
    """Return what follows each statement in its block, by id."""
    blocks = (
        block
        for node in ast.walk(tree)
        for name in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, name, None), list)
    )
    return {id(each): block[place + 1 :] for block in blocks for place, each in enumerate(block)}


def _rebinds(statement: ast.stmt, names: set[str]) -> bool:
    """Return whether there is a loop in ``statement`` that binds one of ``names`` anew."""
    loops = (node for node in ast.walk(statement) if isinstance(node, ast.For | ast.AsyncFor))
    targets = (part for loop in loops for part in ast.walk(loop.target))
    return any(isinstance(part, ast.Name) and part.id in names for part in targets)


def _is_share(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _function_name(node) == "share"


def _expressions_in(trees: Iterable[ast.AST]) -> tuple[ast.expr, ...]:
    """Return every expression in ``trees``."""
    nodes = (node for tree in trees for node in ast.walk(tree))
    return tuple(node for node in nodes if isinstance(node, ast.expr))


def _loop_at(source: str, line: int) -> Loop | None:
    """Return the innermost loop whose header covers ``line``."""
    covering = [loop for loop in _loops_in(source) if loop.first_line <= line <= loop.last_line]
    return max(covering, key=lambda loop: loop.first_line, default=None)


@functools.lru_cache(maxsize=64)
def _later_loop(source: str, line: int) -> Loop | None:
    """Return the loop over an iterator created in ``line``: ``bar = tqdm(enumerate(loader))``."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except SyntaxError:
        return None
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    functions = [node for node in nodes if isinstance(node, kinds)]
    for node in nodes:
        if not isinstance(node, ast.Assign) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if not _is_pass_through(node.value) or not isinstance(node.value, ast.Call):
            return None
        assigned = {target.id for target in node.targets if isinstance(target, ast.Name)}
        scope, end = _innermost_function(functions, line), node.end_lineno or line
        stores = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        rebinds = [n.lineno for n in stores if n.id in assigned and n.lineno > end]
        until = min(
            (at for at in rebinds if _innermost_function(functions, at) is scope),
            default=sys.maxsize,
        )
        later = (loop for loop in _loops_in(source) if end < loop.first_line < until)
        in_scope = (
            loop for loop in later if _innermost_function(functions, loop.first_line) is scope
        )
        loops = [
            loop for loop in in_scope if assigned & {getattr(n, "id", "") for n in loop.iterables}
        ]
        if len(loops) != 1 or not _passes_through(loops[0].iterables[0], assigned):
            return None
        iterables = (*loops[0].iterables, *_expressions_in([node.value]))
        return replace(loops[0], iterables=iterables)
    return None


def _is_pass_through(node: ast.expr) -> bool:
    """Return whether an expression yields the items of loaders one by one and stores none."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Name | ast.Attribute | ast.Constant)
    name = _function_name(node)
    return name == "range" or (
        name in ITERATOR_WRAPPERS | PROGRESS_BARS and all(map(_is_pass_through, node.args))
    )


def _passes_through(node: ast.expr, names: set[str]) -> bool:
    """Return whether an expression is one of ``names``, or yields its items once, one by one."""
    if isinstance(node, ast.Call):
        wrappers = (ITERATOR_WRAPPERS | PROGRESS_BARS) - {"cycle"}
        wraps = _is_pass_through(node) and _function_name(node) in wrappers
        return wraps and any(_passes_through(argument, names) for argument in node.args)
    return isinstance(node, ast.Name) and node.id in names


def _function_name(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else str(getattr(function, "attr", ""))


def _innermost_function(functions: Sequence[ast.stmt | ast.expr], line: int) -> ast.AST | None:
    """Return the innermost of ``functions`` that contains ``line``."""
    within = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
    return max(within, key=lambda each: each.lineno, default=None)
