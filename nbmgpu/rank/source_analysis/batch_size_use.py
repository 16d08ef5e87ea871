"""What a training loop does with the size of its batches, read from its source.

In a split loop ``len(x)`` is the rank's share.  A number that is made with it is not one device's,
and where all ranks have as many samples, comparing ranks afterwards would not show it.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

from .called_functions import functions_called, tree_of
from .loader_loops import Loop, hands_on, loop_around
from .size_expressions import (
    SAID,
    SETTINGS,
    Sizes,
    is_one_of,
    is_size,
    nodes_in,
    operands,
    reads_a_loss,
)

METERS = re.compile(r"(update|add|log\w*)$")
"""Methods that put aside what they are given."""


def loop_counts_samples(frame: types.FrameType | None) -> bool:
    """Tell whether the loop counts by sizes of batches: ``total += loss.item() * len(x)``.

    Or ``meter.update(loss.item(), len(x))``, or ``step * len(x)``.  Or divides a loss by one,
    ``loss.item() / len(x)``, or sets a learning rate by them.
    """
    return _of_loop(frame, _counts_in) or _calls_what_counts(frame)


def loop_compares_batch_size(frame: types.FrameType | None) -> bool:
    """Tell whether the loop does something only for batches of some size.

    ``if x.size(0) != batch_size: continue`` is to leave out the last one, and leaves out all.
    """
    return _of_loop(frame, _asks_in)


def loop_divides_by_batch_size(frame: types.FrameType | None) -> bool:
    """Tell whether the loop divides a number by the size of a batch, or that by a number."""
    return _of_loop(frame, _ratios_in)


def function_counts_samples(function: Any) -> bool:
    """Tell whether ``function``, which is called with each batch, counts by sizes of batches."""
    tree = tree_of(function)
    if tree is None:
        return False
    given = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return _counts(tree.body, given - {"self"})


def _calls_what_counts(frame: types.FrameType | None) -> bool:
    """Tell whether the loop calls a function that returns or adds up ``loss.item() * len(x)``."""
    frame, loop = loop_around(frame)
    if frame is None or loop is None:
        return False
    batch = Sizes(nodes_in(loop.body), loop.targets, made=True)
    called = ((f, _given_to(f, call, batch)) for f, call in functions_called(frame, loop.body))
    return any(itertools.starmap(_weighs_losses, called))


@functools.lru_cache(maxsize=64)
def _weighs_losses(function: types.FunctionType, given: frozenset[str]) -> bool:
    """Tell whether a function ``given`` the batch returns or adds up ``loss.item() * len(x)``."""
    tree = tree_of(function)
    nodes = nodes_in(tree.body) if tree is not None else []
    sizes = Sizes(nodes, given, made=True, said=SAID - SETTINGS)
    found = [*_products_returned(nodes), *_summed_straight(nodes)]
    return any(part in sizes for v in found if reads_a_loss(v) for part in operands(v))


def _products_returned(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    values = (node.value for node in nodes if isinstance(node, ast.Return) and node.value)
    several = (v.elts if isinstance(v, ast.Tuple) else [v] for v in values)
    return (v for vs in several for v in vs if isinstance(v, ast.BinOp))


def _summed_straight(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield what is added up outside of loops: one in a function is over another loader."""
    loops = [nodes_in(node.body) for node in nodes if isinstance(node, ast.For)]
    inside = {id(node) for body in loops for node in body}
    straight = (node for node in nodes if id(node) not in inside)
    return (node.value for node in straight if _adds(node) or _adds_to_itself(node))


def _given_to(function: types.FunctionType, call: ast.Call, batch: Sizes) -> frozenset[str]:
    """Return the names by which ``function`` is given, in ``call``, what is made of the batch."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    named = {k.arg for k in call.keywords if k.arg is not None and batch.made_of(k.value)}
    skipped = len(names) > 0 and names[0] == "self"
    placed = zip(names[skipped:], call.args, strict=False)
    return frozenset(named | {name for name, value in placed if batch.made_of(value)})


def _of_loop(frame: types.FrameType | None, holds: Callable[[Loop], bool]) -> bool:
    """Tell whether something holds of the loop in ``frame``, or of that around its generator."""
    frame, loop = loop_around(frame)
    if frame is None or loop is None:
        return False
    return holds(loop) or (hands_on(frame, loop) and _of_loop(frame.f_back, holds))


@functools.lru_cache(maxsize=64)
def _counts_in(loop: Loop) -> bool:
    return _counts(loop.body, loop.targets) or _rates_by_size(loop)


@functools.lru_cache(maxsize=64)
def _ratios_in(loop: Loop) -> bool:
    nodes = nodes_in(loop.body)
    sizes = Sizes(nodes, loop.targets, made=True)
    ratios = (n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    sides = (pair for n in ratios for pair in ((n.left, n.right), (n.right, n.left)))
    return any(one in sizes and not sizes.made_of(other) for one, other in sides)


@functools.lru_cache(maxsize=64)
def _asks_in(loop: Loop) -> bool:
    return _asks(loop.body, loop.targets)


def _counts(body: list[ast.stmt], given: Iterable[str]) -> bool:
    nodes = nodes_in(body)
    sizes = Sizes(nodes, given, made=True)
    sums = (n.value for n in nodes if _adds(n) or _adds_to_itself(n))
    if any(part in sizes for value in sums for part in operands(value)):
        return True
    if any(_hands_to_meter(n, sizes) or _counts_by(n, sizes, {*given}) for n in nodes):
        return True
    ratios = (n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    if any(n.right in sizes and reads_a_loss(n.left) for n in ratios):
        return True
    return any(part in sizes for value in _factors_of_gradients(nodes) for part in operands(value))


def _factors_of_gradients(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield what gradients are changed by: ``p.grad /= len(x)``, ``p.grad.div_(n)``."""
    for node in nodes:
        if isinstance(node, ast.AugAssign) and _is_gradient(node.target):
            yield node.value
        elif isinstance(node, ast.Assign) and any(map(_is_gradient, node.targets)):
            again = any(map(_is_gradient, ast.walk(node.value)))
            yield from [node.value] if again else ()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changes = node.func.attr in ("div_", "mul_") and _is_gradient(node.func.value)
            yield from node.args if changes else ()


def _is_gradient(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return _is_gradient(node.value)
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def _hands_to_meter(node: ast.AST, sizes: Sizes) -> bool:
    """Tell whether ``node`` is ``meter.update(loss.item(), len(x))``, or of their product."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    sized = [each for each in given if any(part in sizes for part in operands(each))]
    products = (isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult) for each in sized)
    gathers = METERS.match(call.func.attr) is not None and any(products)
    return bool(sized) and (gathers or any(map(reads_a_loss, given)))


def _counts_by(node: ast.AST, sizes: Sizes, given: set[str]) -> bool:
    """Tell whether ``node`` is ``(step + 1) * len(x)``, for a step that the loop counts.

    Or ``step * batch_size + len(x)``.
    """
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Add):
        return False
    for one, other in (node.left, node.right), (node.right, node.left):
        parts = [*operands(other)]
        plain = all(isinstance(part, ast.Name | ast.Constant) for part in parts)
        product = any(isinstance(part, ast.Mult) for part in ast.walk(other))
        counts = isinstance(node.op, ast.Mult) or product
        if one in sizes and plain and counts and any(is_one_of(given, p) for p in parts):
            return True
    return False


def _asks(body: list[ast.stmt], given: Iterable[str]) -> bool:
    nodes = nodes_in(body)
    sizes, also_made = (Sizes(nodes, given, made=made) for made in (False, True))
    tests = (n.test for n in nodes if isinstance(n, ast.If | ast.IfExp))
    asked = (n for test in tests for n in ast.walk(test) if isinstance(n, ast.Compare))
    for comparison in asked:
        sides = [comparison.left, *comparison.comparators]
        of_batch = [any(part in sizes for part in operands(side)) for side in sides]
        alike = [any(part in also_made for part in operands(side)) for side in sides]
        if any(of_batch) and not all(alike):
            return True
    return False


def _rates_by_size(loop: Loop) -> bool:
    """Tell whether there is a ``group["lr"] = ... len(x) ...`` for an ``x`` of the batch."""
    for node in nodes_in(loop.body):
        if not isinstance(node, ast.Assign):
            continue
        parts = (part for target in node.targets for part in ast.walk(target))
        if not any(isinstance(part, ast.Constant) and part.value == "lr" for part in parts):
            continue
        sizes = [part for part in ast.walk(node.value) if is_size(part)]
        named = {part.id for size in sizes for part in ast.walk(size) if isinstance(part, ast.Name)}
        if named & loop.targets:
            return True
    return False


def _adds(node: ast.AST) -> TypeGuard[ast.AugAssign]:
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub)


def _adds_to_itself(node: ast.AST) -> TypeGuard[ast.Assign]:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
        return False
    if not isinstance(node.value.op, ast.Add | ast.Sub):
        # ``(mean * n + loss.item() * len(x)) / (n + len(x))`` is a sum, too
        added = any(isinstance(part, ast.Add | ast.Sub) for part in ast.walk(node.value))
        if not added or not reads_a_loss(node.value):
            return False
    names = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
