"""Detects what a training loop computes from the size of its batches.

In a sharded loop, ``len(x)`` is the size of the rank's shard.  A number computed from it differs
from the number of one device.  If all ranks have equally many samples, comparing the ranks
afterwards does not reveal that, so the source is analyzed instead.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeGuard

from .called_functions import functions_called, parse_function
from .loader_loops import Loop, enclosing_loop, yields_batches
from .size_expressions import (
    CONFIGURED_SIZES,
    SIZE_ATTRIBUTES,
    BatchSizes,
    is_name_in,
    is_size,
    nodes_in,
    operands,
    reads_scalar,
)

METER_METHODS = re.compile(r"(update|add|log\w*)$")
"""Matches names of methods that accumulate their arguments."""


def loop_counts_samples(frame: types.FrameType | None) -> bool:
    """Return whether the loop accumulates by batch size: ``total += loss.item() * len(x)``.

    Also true for ``meter.update(loss.item(), len(x))``, for ``step * len(x)``, for a loss that is
    divided by a batch size (``loss.item() / len(x)``) and for a learning rate set from one.
    """
    return _check_loop(frame, _counts_samples) or _calls_counting_function(frame)


def loop_compares_batch_size(frame: types.FrameType | None) -> bool:
    """Return whether the loop compares the batch size with a number.

    ``if x.size(0) != batch_size: continue`` is meant to skip the last batch, and skips every shard.
    """
    return _check_loop(frame, _compares_batch_size)


def loop_divides_by_batch_size(frame: types.FrameType | None) -> bool:
    """Return whether the loop divides a number by the batch size, or the batch size by a number."""
    return _check_loop(frame, _divides_by_batch_size)


def function_counts_samples(function: Any) -> bool:
    """Return whether ``function``, which is called with each batch, accumulates by batch size."""
    tree = parse_function(function)
    if tree is None:
        return False
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return _body_counts_samples(tree.body, parameters - {"self"})


def _calls_counting_function(frame: types.FrameType | None) -> bool:
    """Return whether the loop calls a function that returns or sums ``loss.item() * len(x)``."""
    frame, loop = enclosing_loop(frame)
    if frame is None or loop is None:
        return False
    batch = BatchSizes(nodes_in(loop.body), loop.targets, derived=True)
    called = (
        (f, _batch_parameters(f, call, batch)) for f, call in functions_called(frame, loop.body)
    )
    return any(itertools.starmap(_weights_losses, called))


@functools.lru_cache(maxsize=64)
def _weights_losses(function: types.FunctionType, batch_names: frozenset[str]) -> bool:
    """Return whether a function returns or sums ``loss.item() * len(x)`` for ``x`` of the batch."""
    tree = parse_function(function)
    nodes = nodes_in(tree.body) if tree is not None else []
    sizes = BatchSizes(
        nodes, batch_names, derived=True, attributes=SIZE_ATTRIBUTES - CONFIGURED_SIZES
    )
    found = [*_returned_products(nodes), *_sums_outside_loops(nodes)]
    return any(part in sizes for v in found if reads_scalar(v) for part in operands(v))


def _returned_products(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    values = (node.value for node in nodes if isinstance(node, ast.Return) and node.value)
    elements = (v.elts if isinstance(v, ast.Tuple) else [v] for v in values)
    return (v for vs in elements for v in vs if isinstance(v, ast.BinOp))


def _sums_outside_loops(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield what is summed outside of loops: a loop in a function is over another loader."""
    loops = [nodes_in(node.body) for node in nodes if isinstance(node, ast.For)]
    inside = {id(node) for body in loops for node in body}
    outside = (node for node in nodes if id(node) not in inside)
    return (node.value for node in outside if _is_augmented_sum(node) or _is_running_sum(node))


def _batch_parameters(
    function: types.FunctionType, call: ast.Call, batch: BatchSizes
) -> frozenset[str]:
    """Return the parameters to which ``call`` passes values that derive from the batch."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    by_keyword = {k.arg for k in call.keywords if k.arg is not None and batch.derives(k.value)}
    skipped = len(names) > 0 and names[0] == "self"
    by_position = zip(names[skipped:], call.args, strict=False)
    return frozenset(by_keyword | {name for name, value in by_position if batch.derives(value)})


def _check_loop(frame: types.FrameType | None, predicate: Callable[[Loop], bool]) -> bool:
    """Return whether ``predicate`` is true for the loop in ``frame``, or around its generator."""
    frame, loop = enclosing_loop(frame)
    if frame is None or loop is None:
        return False
    return predicate(loop.with_rest) or (
        yields_batches(frame, loop) and _check_loop(frame.f_back, predicate)
    )


@functools.lru_cache(maxsize=64)
def _counts_samples(loop: Loop) -> bool:
    return _body_counts_samples(loop.body, loop.targets) or _sets_lr_by_batch_size(loop)


@functools.lru_cache(maxsize=64)
def _divides_by_batch_size(loop: Loop) -> bool:
    nodes = nodes_in(loop.body)
    sizes = BatchSizes(nodes, loop.targets, derived=True)
    ratios = (n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    sides = (pair for n in ratios for pair in ((n.left, n.right), (n.right, n.left)))
    return any(one in sizes and not sizes.derives(other) for one, other in sides)


@functools.lru_cache(maxsize=64)
def _compares_batch_size(loop: Loop) -> bool:
    return _body_compares_batch_size(loop.body, loop.targets)


def _body_counts_samples(body: list[ast.stmt], batch_names: Iterable[str]) -> bool:
    nodes = nodes_in(body)
    sizes = BatchSizes(nodes, batch_names, derived=True)
    sums = (n.value for n in nodes if _is_augmented_sum(n) or _is_running_sum(n))
    if any(part in sizes for value in sums for part in operands(value)):
        return True
    if any(
        _updates_meter(n, sizes) or _multiplies_step_by_size(n, sizes, {*batch_names})
        for n in nodes
    ):
        return True
    ratios = (n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    if any(n.right in sizes and reads_scalar(n.left) for n in ratios):
        return True
    return any(part in sizes for value in _gradient_factors(nodes) for part in operands(value))


def _gradient_factors(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    """Yield what gradients are scaled by: ``p.grad /= len(x)``, ``p.grad.div_(n)``."""
    for node in nodes:
        if isinstance(node, ast.AugAssign) and _is_gradient(node.target):
            yield node.value
        elif isinstance(node, ast.Assign) and any(map(_is_gradient, node.targets)):
            from_gradient = any(map(_is_gradient, ast.walk(node.value)))
            yield from [node.value] if from_gradient else ()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            in_place = node.func.attr in ("div_", "mul_") and _is_gradient(node.func.value)
            yield from node.args if in_place else ()


def _is_gradient(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return _is_gradient(node.value)
    return isinstance(node, ast.Attribute) and node.attr == "grad"


def _updates_meter(node: ast.AST, sizes: BatchSizes) -> bool:
    """Return whether ``node`` is ``meter.update(loss.item(), len(x))``, or passes their product."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    sized = [each for each in arguments if any(part in sizes for part in operands(each))]
    products = (isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult) for each in sized)
    accumulates = METER_METHODS.match(call.func.attr) is not None and any(products)
    return bool(sized) and (accumulates or any(map(reads_scalar, arguments)))


def _multiplies_step_by_size(node: ast.AST, sizes: BatchSizes, batch_names: set[str]) -> bool:
    """Return whether ``node`` is ``(step + 1) * len(x)``, for a step that the loop counts.

    Or ``step * batch_size + len(x)``.
    """
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult | ast.Add):
        return False
    for one, other in (node.left, node.right), (node.right, node.left):
        parts = [*operands(other)]
        plain = all(isinstance(part, ast.Name | ast.Constant) for part in parts)
        product = any(isinstance(part, ast.Mult) for part in ast.walk(other))
        counts = isinstance(node.op, ast.Mult) or product
        if one in sizes and plain and counts and any(is_name_in(batch_names, p) for p in parts):
            return True
    return False


def _body_compares_batch_size(body: list[ast.stmt], batch_names: Iterable[str]) -> bool:
    nodes = nodes_in(body)
    sizes, derived_sizes = (BatchSizes(nodes, batch_names, derived=d) for d in (False, True))
    tests = (n.test for n in nodes if isinstance(n, ast.If | ast.IfExp))
    comparisons = (n for test in tests for n in ast.walk(test) if isinstance(n, ast.Compare))
    for comparison in comparisons:
        sides = [comparison.left, *comparison.comparators]
        of_batch = [any(part in sizes for part in operands(side)) for side in sides]
        derived = [any(part in derived_sizes for part in operands(side)) for side in sides]
        if any(of_batch) and not all(derived):
            return True
    return False


def _sets_lr_by_batch_size(loop: Loop) -> bool:
    """Return whether there is a ``group["lr"] = ... len(x) ...`` for an ``x`` of the batch."""
    for node in nodes_in(loop.body):
        if not isinstance(node, ast.Assign):
            continue
        parts = (part for target in node.targets for part in ast.walk(target))
        if not any(isinstance(part, ast.Constant) and part.value == "lr" for part in parts):
            continue
        sizes = [part for part in ast.walk(node.value) if is_size(part)]
        names = {part.id for size in sizes for part in ast.walk(size) if isinstance(part, ast.Name)}
        if names & loop.targets:
            return True
    return False


def _is_augmented_sum(node: ast.AST) -> TypeGuard[ast.AugAssign]:
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub)


def _is_running_sum(node: ast.AST) -> TypeGuard[ast.Assign]:
    """Return whether a statement adds to the variable that it assigns: ``total = total + n``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
        return False
    if not isinstance(node.value.op, ast.Add | ast.Sub):
        # ``(mean * n + loss.item() * len(x)) / (n + len(x))`` is a running sum, too
        added = any(isinstance(part, ast.Add | ast.Sub) for part in ast.walk(node.value))
        if not added or not reads_scalar(node.value):
            return False
    names = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return any(isinstance(target, ast.Name) and target.id in names for target in node.targets)
