"""Loops over loaders, found from the frame that asks the loader for batches."""

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
from .stack_frames import LIBRARIES, outside

WRAPS = {"enumerate", "zip", "zip_longest", "islice", "chain", "map", "filter", "cycle"}
"""Functions that ask a loader at once, for a loop that comes later."""

BARS = {"tqdm", "tqdm_notebook", "track", "progress_bar"}
"""Functions that hand on, one by one, what is given to them."""


def is_cycled(loader: Any, frame: types.FrameType | None) -> bool | None:
    """Tell whether the loop in ``frame`` gives ``loader`` to ``itertools.cycle``, and only to it.

    ``cycle`` keeps the batches and asks the loader once.

    Returns:
        True or False, and None where the loop has a ``cycle`` and its source does not tell whose.
    """
    frame = outside(frame, LIBRARIES)
    if frame is None:
        return False
    loop, line = loop_in(frame)
    over = loop.over if loop is not None else _expressions(line.strip())
    names = {**frame.f_globals, **frame.f_locals}
    calls = [node for node in over if isinstance(node, ast.Call)]
    cycles = [call for call in calls if resolve(call.func, names) is itertools.cycle]
    cycled = [argument for call in cycles for argument in call.args]
    within = [node for argument in cycled for node in ast.walk(argument)]
    found = [node for node in over if resolve(node, names) is loader]
    if found:
        if all(node in cycled for node in found):
            return True
        return None if any(node in within for node in found) else False
    others = (list, tuple, dict, range, str, DataLoader)
    return False if all(isinstance(resolve(node, names), others) for node in cycled) else None


def zips_loaders(frame: types.FrameType | None) -> bool:
    """Tell whether the loop in ``frame`` takes batches of several loaders at once, by ``zip``."""
    _, loop = loop_around(frame)
    calls = [node for node in (loop.over if loop else ()) if isinstance(node, ast.Call)]
    return any(isinstance(c.func, ast.Name) and c.func.id == "zip" for c in calls)


def _expressions(line: str) -> tuple[ast.expr, ...]:
    """Return every expression of a statement that is one line."""
    try:
        return _expressions_in([ast.parse(line)])
    except SyntaxError:
        return ()


def hands_on(frame: types.FrameType, loop: Loop) -> bool:
    """Tell whether a loop is that of a generator, which hands batches on to a loop around it."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) and _yields(loop.body)


def loop_around(frame: types.FrameType | None) -> tuple[types.FrameType | None, Loop | None]:
    """Return the first frame of the user's code from ``frame`` outwards, and its loop."""
    frame = outside(frame, LIBRARIES)
    return frame, None if frame is None else loop_in(frame)[0]


def loop_in(frame: types.FrameType) -> tuple[Loop | None, str]:
    """Return the loop that ``frame`` is about to enter, and the current line."""
    lines = linecache.getlines(frame.f_code.co_filename)
    line = lines[frame.f_lineno - 1] if frame.f_lineno <= len(lines) else ""
    source = "".join(lines)
    return _loop_at(source, frame.f_lineno) or _loop_to_come(source, frame.f_lineno), line


def _yields(body: list[ast.stmt]) -> bool:
    """Tell whether a loop hands its batches on to a loop around a generator."""
    nodes = (node for statement in body for node in ast.walk(statement))
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes)


@dataclass(frozen=True, eq=False)
class Loop:
    """A loop or comprehension: its header's lines, what it does, the names it gives to an item.

    ``over`` has every expression of what it iterates over.
    """

    first: int
    last: int
    body: list[ast.stmt]
    targets: frozenset[str] = frozenset()
    over: tuple[ast.expr, ...] = ()


@functools.lru_cache(maxsize=64)
def _loops(source: str) -> list[Loop]:
    """Return every loop and comprehension of ``source``."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor):
            names = {part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)}
            last = node.iter.end_lineno or node.lineno
            over = _expressions_in([node.iter])
            found.append(Loop(node.lineno, last, node.body, frozenset(names), over))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
            made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            body: list[ast.stmt] = [ast.Expr(part) for part in made]
            over = _expressions_in(part.iter for part in node.generators)
            found.append(Loop(node.lineno, node.end_lineno or node.lineno, body, over=over))
    return found


def _expressions_in(trees: Iterable[ast.AST]) -> tuple[ast.expr, ...]:
    """Return every expression of ``trees``."""
    nodes = (node for tree in trees for node in ast.walk(tree))
    return tuple(node for node in nodes if isinstance(node, ast.expr))


def _loop_at(source: str, line: int) -> Loop | None:
    """Return the innermost loop whose header covers ``line``."""
    covering = [loop for loop in _loops(source) if loop.first <= line <= loop.last]
    return max(covering, key=lambda loop: loop.first, default=None)


@functools.lru_cache(maxsize=64)
def _loop_to_come(source: str, line: int) -> Loop | None:
    """Return the loop over what is made in ``line``: ``bar = tqdm(enumerate(loader))``."""
    try:
        nodes = [*ast.walk(ast.parse(source))]
    except SyntaxError:
        return None
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    functions = [node for node in nodes if isinstance(node, kinds)]
    for node in nodes:
        if not isinstance(node, ast.Assign) or not node.lineno <= line <= (node.end_lineno or 0):
            continue
        if not _hands_all_on(node.value) or not isinstance(node.value, ast.Call):
            return None
        made = {target.id for target in node.targets if isinstance(target, ast.Name)}
        home, end = _around(functions, line), node.end_lineno or line
        stored = (n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        again = [n.lineno for n in stored if n.id in made and n.lineno > end]
        until = min((at for at in again if _around(functions, at) is home), default=sys.maxsize)
        later = (loop for loop in _loops(source) if end < loop.first < until)
        here = (loop for loop in later if _around(functions, loop.first) is home)
        loops = [loop for loop in here if made & {getattr(n, "id", "") for n in loop.over}]
        if len(loops) != 1 or not _leads_to(loops[0].over[0], made):
            return None
        return replace(loops[0], over=(*loops[0].over, *_expressions_in([node.value])))
    return None


def _hands_all_on(node: ast.expr) -> bool:
    """Tell whether an expression hands on, one by one, what loaders give, and keeps nothing."""
    if not isinstance(node, ast.Call):
        return isinstance(node, ast.Name | ast.Attribute | ast.Constant)
    name = _called(node)
    return name == "range" or (name in WRAPS | BARS and all(map(_hands_all_on, node.args)))


def _leads_to(node: ast.expr, names: set[str]) -> bool:
    """Tell whether an expression is one of ``names``, or hands that on, once and one by one."""
    if isinstance(node, ast.Call):
        hands_on = _hands_all_on(node) and _called(node) in (WRAPS | BARS) - {"cycle"}
        return hands_on and any(_leads_to(argument, names) for argument in node.args)
    return isinstance(node, ast.Name) and node.id in names


def _called(call: ast.Call) -> str:
    function = call.func
    return function.id if isinstance(function, ast.Name) else str(getattr(function, "attr", ""))


def _around(functions: Sequence[ast.stmt | ast.expr], line: int) -> ast.AST | None:
    """Return the innermost of ``functions`` that has ``line`` in it."""
    within = [each for each in functions if each.lineno <= line <= (each.end_lineno or 0)]
    return max(within, key=lambda each: each.lineno, default=None)
