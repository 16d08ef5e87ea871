"""What a training loop does with the size of its batches, read from its source.

In a split loop ``len(x)`` is the rank's share.  A number that is made with it is not one device's,
and where all ranks have as many samples, comparing ranks afterwards would not show it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

from .loops import Loop, functions_called, hands_on, loop_around

READS = {"item", "tolist"}
"""Methods that make a Python number of a loss."""


def loop_counts_samples(frame: types.FrameType | None) -> bool:
    """Tell whether the loop counts by sizes of batches: ``total += loss.item() * len(x)``.

    Or ``meter.update(loss.item(), len(x))``, or ``step * len(x)``.  Or divides a loss by one,
    ``loss.item() / len(x)``, or sets a learning rate by them.
    """
    return _of_loop(frame, _counts_in) or _calls_what_counts(frame)


def loop_asks_for_size(frame: types.FrameType | None) -> bool:
    """Tell whether the loop does something only for batches of some size.

    ``if x.size(0) != batch_size: continue`` is to leave out the last one, and leaves out all.
    """
    return _of_loop(frame, _asks_in)


def function_counts_samples(function: Any) -> bool:
    """Tell whether ``function``, which is called with each batch, counts by sizes of batches."""
    tree = _tree_of(function)
    if tree is None:
        return False
    given = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return _counts(tree.body, given - {"self"})


def _calls_what_counts(frame: types.FrameType | None) -> bool:
    """Tell whether the loop calls a function that returns ``loss.item() * len(x)``."""
    frame, loop = loop_around(frame)
    if frame is None or loop is None:
        return False
    return any(map(_returns_counts, functions_called(frame, loop)))


@functools.lru_cache(maxsize=64)
def _returns_counts(function: types.FunctionType) -> bool:
    tree = _tree_of(function)
    nodes = _nodes(tree.body) if tree is not None else []
    sizes = _Sizes(nodes, {node.arg for node in nodes if isinstance(node, ast.arg)}, made=True)
    values = (node.value for node in nodes if isinstance(node, ast.Return) and node.value)
    several = (v.elts if isinstance(v, ast.Tuple) else [v] for v in values)
    products = (v for vs in several for v in vs if isinstance(v, ast.BinOp))
    return any(_reads_a_loss(p) and any(part in sizes for part in _operands(p)) for p in products)


def _tree_of_cell(cell: str) -> ast.Module:
    """Return the tree of a cell, empty if it is no Python: of magics nothing is known."""
    try:
        return ast.parse(cell)
    except SyntaxError:
        return ast.Module([], [])


def _tree_of(function: Any) -> ast.Module | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None


def divides_by_multiple(cell: str) -> bool:
    """Tell whether a cell divides by a product with a batch's size: ``/ (2 * len(x))``."""
    return _divides_by_multiple(_nodes(_tree_of_cell(cell).body))


@functools.lru_cache(maxsize=256)
def function_divides_by_multiple(function: types.FunctionType) -> bool:
    """Tell the same of a function."""
    tree = _tree_of(function)
    return tree is not None and _divides_by_multiple(list(ast.walk(tree)))


def _divides_by_multiple(nodes: list[ast.AST]) -> bool:
    sizes = _named_sizes(nodes)
    divisors = (n.right for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    for divisor in divisors:
        parts = list(ast.walk(divisor))
        product = any(isinstance(part, ast.Mult) for part in parts)
        if product and any(_is_size(part) or _is_one_of(sizes, part) for part in parts):
            return True
    return False


def by_size(cell: str) -> bool:
    """Tell whether a cell multiplies or divides a loss by a batch's size: ``loss * len(x)``.

    Not a number, as ``loss.item() * len(x)`` is.
    """
    return _by_size(_nodes(_tree_of_cell(cell).body))


@functools.lru_cache(maxsize=256)
def function_by_size(function: types.FunctionType) -> bool:
    """Tell the same of a function."""
    tree = _tree_of(function)
    return tree is not None and _by_size(list(ast.walk(tree)))


def assigned(cell: str) -> set[str]:
    """Return the names that a cell gives to values."""
    return {n.id for n in _names_in(_tree_of_cell(cell)) if isinstance(n.ctx, ast.Store)}


def _by_size(nodes: list[ast.AST]) -> bool:
    named = _named_sizes(nodes)

    def is_size(node: ast.AST) -> bool:
        return _whose_size(node) is not None or _is_one_of(named, node)

    for node in nodes:
        left: ast.expr
        if isinstance(node, ast.AugAssign):
            left, right = node.target, node.value
        elif isinstance(node, ast.BinOp):
            left, right = node.left, node.right
        else:
            continue
        if isinstance(node.op, ast.Mult | ast.Div) and not _reads_a_loss(left):
            operands = [
                *_operands(right),
                *(_operands(left) if isinstance(node.op, ast.Mult) else ()),
            ]
            if any(is_size(part) for part in operands) and not _reads_a_loss(right):
                return True
    return False


def _of_loop(frame: types.FrameType | None, holds: Callable[[Loop], bool]) -> bool:
    """Tell whether something holds of the loop in ``frame``, or of that around its generator."""
    frame, loop = loop_around(frame)
    if frame is None or loop is None:
        return False
    return holds(loop) or (hands_on(frame, loop) and _of_loop(frame.f_back, holds))


class _Sizes:
    """The expressions of a loop's body that are sizes of the batch, or of what is made of it."""

    def __init__(self, nodes: list[ast.AST], given: Iterable[str], made: bool) -> None:
        """Look at all ``nodes`` of a body that is ``given`` the batch by these names.

        With ``made``, sizes may also be those of tensors that are made of the batch.
        """
        given = {*given}
        assigned = [node for node in nodes if isinstance(node, ast.Assign)]
        self._apart = {name for name in given if _is_taken_apart(name, nodes, len(given) == 1)}
        self._parts, moved = _grown(given, assigned, _is_part_of)
        self._made, computed = _grown(given, assigned, _is_made_of)
        if not made:
            self._made, computed = self._parts, moved
        self._named = _named_sizes(computed)

    def __contains__(self, node: ast.AST) -> bool:
        shape = isinstance(node, ast.Subscript) and _is_first(node.slice)  # ``shape[0]``
        if _is_one_of(self._named, node.value if shape else node):  # type: ignore[attr-defined]
            return True
        what = _whose_size(node)
        if what is None:
            return False
        # What is made may be a list: ``len`` of it would be of something else.
        counted = isinstance(node, ast.Call) and _is_call_of(node, "len")
        if counted and _is_one_of(self._apart, what):
            return False
        names = self._parts if counted else self._made
        return any(_is_one_of(names, part) for part in _owners(what))


def _grown(
    names: set[str], assigned: list[ast.Assign], holds: Callable[[ast.expr, set[str]], bool]
) -> tuple[set[str], list[ast.Assign]]:
    """Add to ``names`` those that are given to what ``holds`` of them; and return where."""
    before = -1
    while len(names) > before:  # assignments are in no order
        before = len(names)
        found = [node for node in assigned if holds(node.value, names)]
        targets = (name for node in found for target in node.targets for name in _names_in(target))
        names = names | {name.id for name in targets if isinstance(name.ctx, ast.Store)}
    return names, found


def _is_made_of(value: ast.expr, names: set[str]) -> bool:
    return any(name.id in names for name in _names_in(value))


def _is_part_of(value: ast.expr, names: set[str]) -> bool:
    if isinstance(value, ast.Tuple | ast.List):
        return any(_is_part_of(part, names) for part in value.elts)
    return any(_is_one_of(names, part) for part in _owners(value))


def _is_taken_apart(name: str, nodes: list[ast.AST], alone: bool) -> bool:
    """Tell whether a batch is a tuple or a mapping, whose length is that of its fields.

    ``x[0]`` tells so only of a name that is ``alone`` that of the batch, or gets one itself.
    """
    fields = {id(part) for node in nodes if isinstance(node, ast.Assign) for part in _values(node)}
    if len({_place(node, name) for node in nodes} - {None}) > 1:
        return True
    for node in nodes:
        whose = getattr(node, "value", None)
        if whose is None or not _is_one_of({name}, whose):
            continue
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Tuple) for t in node.targets):
            return True
        if isinstance(node, ast.Starred) or (isinstance(node, ast.keyword) and node.arg is None):
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            field = node.slice.value
            if isinstance(field, str) or (isinstance(field, int) and (alone or id(node) in fields)):
                return True
    return False


def _place(node: ast.AST, name: str) -> int | None:
    """Return the number in ``name[1]``, None for what is none of that kind."""
    if not isinstance(node, ast.Subscript) or not _is_one_of({name}, node.value):
        return None
    index = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return index if isinstance(index, int) else None


def _values(node: ast.Assign) -> list[ast.expr]:
    return node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]


def _names_in(node: ast.AST) -> list[ast.Name]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]


def _owners(node: ast.expr) -> Iterator[ast.expr]:
    """Yield ``node``, and what it is a part or a method's result of: ``x`` for ``x[0].to(d)``."""
    yield node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _owners(node.func.value)
    elif isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        yield from _owners(node.value)
    elif isinstance(node, ast.Call) and _is_call_of(node, "len") and node.args:
        yield from _owners(node.args[0])


@functools.lru_cache(maxsize=64)
def _counts_in(loop: Loop) -> bool:
    return _counts(loop.body, loop.targets) or _rates_by_size(loop)


@functools.lru_cache(maxsize=64)
def _asks_in(loop: Loop) -> bool:
    return _asks(loop.body, loop.targets)


def _counts(body: list[ast.stmt], given: Iterable[str]) -> bool:
    nodes = _nodes(body)
    sizes = _Sizes(nodes, given, made=True)
    sums = (n.value for n in nodes if _adds(n) or _adds_to_itself(n))
    if any(part in sizes for value in sums for part in _operands(value)):
        return True
    if any(_hands_to_meter(n, sizes) or _counts_by(n, sizes, {*given}) for n in nodes):
        return True
    ratios = (n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Div))
    return any(n.right in sizes and _reads_a_loss(n.left) for n in ratios)


def _hands_to_meter(node: ast.AST, sizes: _Sizes) -> bool:
    """Tell whether ``node`` is ``meter.update(loss.item(), len(x))``, or of their product."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    parts = (part for each in given for part in _operands(each))
    return any(part in sizes for part in parts) and any(map(_reads_a_loss, given))


def _counts_by(node: ast.AST, sizes: _Sizes, given: set[str]) -> bool:
    """Tell whether ``node`` is ``(step + 1) * len(x)``, for a step that the loop counts."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    for one, other in (node.left, node.right), (node.right, node.left):
        parts = [*_operands(other)]
        plain = all(isinstance(part, ast.Name | ast.Constant) for part in parts)
        if one in sizes and plain and any(_is_one_of(given, part) for part in parts):
            return True
    return False


def _asks(body: list[ast.stmt], given: Iterable[str]) -> bool:
    nodes = _nodes(body)
    sizes, also_made = (_Sizes(nodes, given, made=made) for made in (False, True))
    tests = (n.test for n in nodes if isinstance(n, ast.If | ast.IfExp))
    asked = (n for test in tests for n in ast.walk(test) if isinstance(n, ast.Compare))
    for comparison in asked:
        sides = [comparison.left, *comparison.comparators]
        of_batch = [any(part in sizes for part in _operands(side)) for side in sides]
        alike = [any(part in also_made for part in _operands(side)) for side in sides]
        if any(of_batch) and not all(alike):
            return True
    return False


def _rates_by_size(loop: Loop) -> bool:
    """Tell whether there is a ``group["lr"] = ... len(x) ...`` for an ``x`` of the batch."""
    for node in _nodes(loop.body):
        if not isinstance(node, ast.Assign):
            continue
        parts = (part for target in node.targets for part in ast.walk(target))
        if not any(isinstance(part, ast.Constant) and part.value == "lr" for part in parts):
            continue
        sizes = [part for part in ast.walk(node.value) if _is_size(part)]
        named = {part.id for size in sizes for part in ast.walk(size) if isinstance(part, ast.Name)}
        if named & loop.targets:
            return True
    return False


def _nodes(body: list[ast.stmt]) -> list[ast.AST]:
    return [node for statement in body for node in ast.walk(statement)]


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what an expression is calculated from: what is between its operators."""
    if isinstance(node, ast.BinOp):
        yield from _operands(node.left)
        yield from _operands(node.right)
    elif isinstance(node, ast.UnaryOp):
        yield from _operands(node.operand)
    elif isinstance(node, ast.Call) and _is_call_of(node, "int", "float") and node.args:
        yield from _operands(node.args[0])
    else:
        yield node


def _reads_a_loss(node: ast.expr) -> bool:
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(
        _is_call_of(call, "float")
        or (isinstance(call.func, ast.Attribute) and call.func.attr in READS)
        for call in calls
    )


def _named_sizes(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are given to sizes: ``n = len(x)``, ``n, d = x.shape``."""
    given = [n for n in nodes if isinstance(n, ast.Assign)]
    targets = [t for n in given for t in n.targets if _whose_size(n.value) is not None]
    shapes = [t for n in given for t in n.targets if _is_shape(n.value)]
    targets += [t.elts[0] if isinstance(t, ast.Tuple | ast.List) else t for t in shapes]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _whose_size(node: ast.AST) -> ast.expr | None:
    """Return ``x`` of ``len(x)``, ``x.size(0)``, ``x.shape[0]`` and the like.

    Other dimensions than the first are the same on all ranks.
    """
    if isinstance(node, ast.Subscript) and _is_first(node.slice) and _is_shape(node.value):
        what = node.value.func if isinstance(node.value, ast.Call) else node.value
        return what.value if isinstance(what, ast.Attribute) else None
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        dims = [*node.args, *(keyword.value for keyword in node.keywords)]
        which = not dims or _is_first(dims[0])
        return node.func.value if which and node.func.attr in ("size", "numel") else None
    counted = _is_call_of(node, "len") and node.args and not _is_shape(node.args[0])
    return node.args[0] if counted else None


def _is_shape(node: ast.expr) -> bool:
    call = isinstance(node, ast.Call) and not node.args
    what = node.func if isinstance(node, ast.Call) and call else node
    return isinstance(what, ast.Attribute) and what.attr == ("size" if call else "shape")


def _is_first(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and index.value == 0


def _is_one_of(names: set[str], node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _is_call_of(call: ast.Call, *names: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in names


def _adds(node: ast.AST) -> TypeGuard[ast.AugAssign]:
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub)


def _adds_to_itself(node: ast.AST) -> TypeGuard[ast.Assign]:
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.BinOp):
        return False
    if not isinstance(node.value.op, ast.Add | ast.Sub):
        return False
    names = {part.id for part in ast.walk(node.value) if isinstance(part, ast.Name)}
    return any(isinstance(target, ast.Name) and target.id in names for target in node.targets)


def _is_size(node: ast.AST) -> bool:
    """Tell whether an expression is ``len(x)``, ``x.size(...)``, ``x.shape`` or ``x.numel()``."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("size", "shape", "numel")
    return isinstance(node, ast.Call) and _is_call_of(node, "len")
