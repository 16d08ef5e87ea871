"""Is a loop over a loader a training loop?

A loader is split among ranks only where gradients come of it.  A loop that
cannot reach ``backward()`` (an evaluation, a pass that computes a mean) is
left whole, so that whatever it computes is what one device computes.  The
answer is read from the source of the loop and of the functions it calls.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

TRAINS = {"backward", "step", "fit", "train_step", "training_step", "manual_backward", "minimize"}
"""Attribute names whose call may lead to a backward pass in code that is not ours to read."""

LIBRARIES = (
    "torch", "numpy", "tqdm", "nbmgpu", "enum", "contextlib", "IPython", "accelerate",
    "lightning", "pytorch_lightning", "lightning_fabric",
)  # fmt: skip
MAX_DEPTH = 6

HANDED = re.compile(r"\b(iter|next)\(")
"""A line that takes batches one by one, for a loop that cannot be seen from here."""

PEEK = re.compile(r"\bnext\(\s*iter\(")
"""A line that takes one batch to look at."""

known: list[Callable[[types.FrameType | None], bool | None]] = []
"""What libraries with loops of their own answer for ``loop_trains``; None: not theirs."""


def loop_trains(frame: types.FrameType | None) -> bool | None:
    """Tell whether the loop that begins in ``frame`` or its callers may train.

    Returns:
        True or False for a loop or comprehension whose source can be read, None for
        ``it = iter(loader)``, which may feed any loop.  ``next(iter(loader))``, a look at
        one batch, is not a training loop, nor is ``list(loader)`` or whatever else takes
        the batches out of sight.  Of a generator that hands batches on, it is the loop
        around it that counts.
    """
    for library in known:
        if (answer := library(frame)) is not None:
            return answer
    frame = _users_frame(frame)
    if frame is None:
        return False
    body, line = _body_in(frame)
    if body is None:
        return None if HANDED.search(line) and not PEEK.search(line) else False
    if _may_train(body, {**frame.f_globals, **frame.f_locals}, 0):
        return True
    hands_on = frame.f_code.co_flags & inspect.CO_GENERATOR and _yields(body)
    return loop_trains(frame.f_back) if hands_on else False


def loop_counts_samples(frame: types.FrameType | None) -> bool:
    """Tell whether the loop adds up sizes of batches: ``total += loss.item() * len(x)``.

    In a split loop such a sum covers the rank's share.  All ranks may agree on it, so
    comparing them afterwards would not show it.
    """
    frame = _users_frame(frame)
    body = _body_in(frame)[0] if frame is not None else None
    return _counts_samples(body or [])


def function_counts_samples(function: Any) -> bool:
    """Tell whether ``function``, which is called with each batch, adds up sizes of batches."""
    try:
        return _counts_samples(ast.parse(textwrap.dedent(inspect.getsource(function))).body)
    except (OSError, SyntaxError, TypeError):
        return False


def _counts_samples(body: list[ast.stmt]) -> bool:
    sums = (
        node.value
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.AugAssign) or _adds_to_itself(node)
    )
    return any(_is_size(part) for value in sums for part in ast.walk(value))


def _adds_to_itself(node: ast.AST) -> TypeGuard[ast.Assign]:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
        return False
    names = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return any(isinstance(target, ast.Name) and target.id in names for target in node.targets)


def _is_size(node: ast.AST) -> bool:
    """Tell whether an expression is ``len(x)``, ``x.size(...)``, ``x.shape`` or ``x.numel()``."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("size", "shape", "numel")
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"


def _body_in(frame: types.FrameType) -> tuple[list[ast.stmt] | None, str]:
    """Return the body of the loop that ``frame`` is about to enter, and the current line."""
    lines = linecache.getlines(frame.f_code.co_filename)
    line = lines[frame.f_lineno - 1] if frame.f_lineno <= len(lines) else ""
    return _body_at("".join(lines), frame.f_lineno), line


def _yields(body: list[ast.stmt]) -> bool:
    """Tell whether a loop hands its batches on to a loop around a generator."""
    nodes = (node for statement in body for node in ast.walk(statement))
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in nodes)


def _users_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """Walk out of libraries such as tqdm, whose generators iterate for the user."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in LIBRARIES:
            return frame
        frame = frame.f_back
    return None


@functools.lru_cache(maxsize=64)
def _loops(source: str) -> list[tuple[int, int, list[ast.stmt]]]:
    """Return first and last header line and body of every loop and comprehension."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    found: list[tuple[int, int, list[ast.stmt]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor):
            found.append((node.lineno, node.iter.end_lineno or node.lineno, node.body))
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            found.append((node.lineno, node.end_lineno or node.lineno, [ast.Expr(node.elt)]))
        elif isinstance(node, ast.DictComp):
            body: list[ast.stmt] = [ast.Expr(node.key), ast.Expr(node.value)]
            found.append((node.lineno, node.end_lineno or node.lineno, body))
    return found


def _body_at(source: str, line: int) -> list[ast.stmt] | None:
    """Return the body of the innermost loop whose header covers ``line``."""
    covering = [loop for loop in _loops(source) if loop[0] <= line <= loop[1]]
    return max(covering, key=lambda loop: loop[0], default=(0, 0, None))[2]


def _may_train(body: list[ast.stmt], names: dict[str, Any], depth: int) -> bool:
    called = {c.func.attr for c in _calls(body) if isinstance(c.func, ast.Attribute)}
    trains = TRAINS - {"step"} if "grad" in called else TRAINS  # gradients that nobody averages
    for call in _calls(body):
        function = call.func
        if isinstance(function, ast.Attribute) and function.attr in trains:
            if not _is_harmless(function, names):
                return True
            continue
        target = _resolve(function, names)
        if target is None:
            continue  # a method of an object made in the loop: its name said nothing
        if _target_trains(target, depth):
            return True
    return False


def _calls(body: list[ast.stmt]) -> Iterator[ast.Call]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call):
                yield node


def _is_harmless(function: ast.Attribute, names: dict[str, Any]) -> bool:
    """Tell whether ``x.step()`` is a profiler's or a progress bar's, not an optimizer's."""
    target = _resolve(function.value, names)
    module = type(target).__module__
    return target is not None and module.startswith(("torch.profiler", "torch.autograd.profiler"))


def _resolve(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the object a name or dotted name stands for, without running any code of it."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, names)
        if owner is None:
            return None
        try:
            found = inspect.getattr_static(owner, node.attr)
        except AttributeError:
            return None
        return found.__func__ if isinstance(found, staticmethod | classmethod) else found
    return None


def _target_trains(target: Any, depth: int) -> bool:
    if isinstance(target, functools.partial):
        target = target.func
    if isinstance(target, type):
        target = target.__init__  # type: ignore[misc]
    if not isinstance(target, types.FunctionType | types.MethodType):
        # A callable object: a module (its forward does not train) or something with __call__.
        call = getattr(type(target), "__call__", None)  # noqa: B004 - the function itself is wanted
        if not isinstance(call, types.FunctionType):
            return False
        target = call
    function = inspect.unwrap(target)
    if isinstance(function, types.MethodType):
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return False
    module = (getattr(function, "__module__", "") or "").split(".")[0]
    if module in LIBRARIES or module in sys.stdlib_module_names - {"__main__"}:
        return False
    return _function_trains(function, depth)


def _function_trains(function: types.FunctionType, depth: int) -> bool:
    if depth >= MAX_DEPTH:
        return True
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return "backward" in function.__code__.co_names
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    return _may_train(tree.body, names, depth + 1)
