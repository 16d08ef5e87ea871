"""Expressions that are sizes of a batch: ``len(x)``, ``x.size(0)``, ``batch.num_graphs``."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

READS = {"item", "tolist"}
"""Methods that make a Python number of a loss."""

ELEMENTS = ("numel", "nelement")

SETTINGS = {"batch_size"}
SAID = {"num_graphs", "num_nodes"} | SETTINGS
"""Attributes by which a batch says its own size; of ``SETTINGS``, others have some, too."""


class Sizes:
    """The expressions of a loop's body that are sizes of the batch, or of what is made of it."""

    def __init__(
        self, nodes: list[ast.AST], given: Iterable[str], made: bool, said: Collection[str] = SAID
    ) -> None:
        """Look at all ``nodes`` of a body that is ``given`` the batch by these names.

        With ``made``, sizes may also be those of tensors that are made of the batch.
        """
        given, self._said = {*given}, said
        assigned = [node for node in nodes if isinstance(node, ast.Assign)]
        self._apart = {name for name in given if _is_taken_apart(name, nodes, len(given) == 1)}
        self._parts, moved = _grown(given, assigned, _is_part_of)
        self._made, computed = _grown(given, assigned, _is_made_of)
        if not made:
            self._made, computed = self._parts, moved
        says = (n for n in computed if isinstance(n.value, ast.Attribute) and n.value.attr in said)
        names = {t.id for n in says for t in n.targets if isinstance(t, ast.Name)}
        self._named = named_sizes(computed) | names

    def made_of(self, node: ast.expr) -> bool:
        """Tell whether an expression has something in it that is made of the batch."""
        return _is_made_of(node, self._made)

    def __contains__(self, node: ast.AST) -> bool:
        """Tell whether an expression is such a size."""
        shape = isinstance(node, ast.Subscript) and _is_first(node.slice)  # ``shape[0]``
        if is_one_of(self._named, node.value if shape else node):  # type: ignore[attr-defined]
            return True
        what = whose_size(node)
        if isinstance(node, ast.Attribute) and node.attr in self._said:
            what = node.value
        if what is None:
            return False
        # What is made may be a list: ``len`` of it would be of something else.
        counted = isinstance(node, ast.Call) and _is_call_of(node, "len")
        if counted and is_one_of(self._apart, what):
            return False
        names = self._parts if counted else self._made
        return any(is_one_of(names, part) for part in _owners(what))


def _grown(
    names: set[str], assigned: list[ast.Assign], holds: Callable[[ast.expr, set[str]], bool]
) -> tuple[set[str], list[ast.Assign]]:
    """Add to ``names`` those that are given to what ``holds`` of them; and return where."""
    before = -1
    while len(names) > before:  # assignments are in no order
        before = len(names)
        found = [node for node in assigned if holds(node.value, names)]
        targets = (name for node in found for target in node.targets for name in names_in(target))
        names = names | {name.id for name in targets if isinstance(name.ctx, ast.Store)}
    return names, found


def _is_made_of(value: ast.expr, names: set[str]) -> bool:
    return any(name.id in names for name in names_in(value))


def _is_part_of(value: ast.expr, names: set[str]) -> bool:
    if isinstance(value, ast.Tuple | ast.List):
        return any(_is_part_of(part, names) for part in value.elts)
    return any(is_one_of(names, part) for part in _owners(value))


def _is_taken_apart(name: str, nodes: list[ast.AST], alone: bool) -> bool:
    """Tell whether a batch is a tuple or a mapping, whose length is that of its fields.

    ``x[0]`` tells so only of a name that is ``alone`` that of the batch, or gets one itself.
    """
    fields = {id(part) for node in nodes if isinstance(node, ast.Assign) for part in _values(node)}
    if len({_place(node, name) for node in nodes} - {None}) > 1:
        return True
    for node in nodes:
        whose = getattr(node, "value", None)
        if whose is None or not is_one_of({name}, whose):
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
    if not isinstance(node, ast.Subscript) or not is_one_of({name}, node.value):
        return None
    index = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return index if isinstance(index, int) else None


def _values(node: ast.Assign) -> list[ast.expr]:
    return node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]


def names_in(node: ast.AST) -> list[ast.Name]:
    """Return all names of an expression or a statement."""
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


def operands(node: ast.expr) -> Iterator[ast.expr]:
    """Yield what an expression is calculated from: what is between its operators."""
    if isinstance(node, ast.BinOp):
        yield from operands(node.left)
        yield from operands(node.right)
    elif isinstance(node, ast.UnaryOp):
        yield from operands(node.operand)
    elif isinstance(node, ast.Call) and _is_call_of(node, "int", "float") and node.args:
        yield from operands(node.args[0])
    else:
        yield node


def reads_a_loss(node: ast.expr) -> bool:
    """Tell whether an expression makes a Python number of a tensor."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(
        _is_call_of(call, "float")
        or (isinstance(call.func, ast.Attribute) and call.func.attr in READS)
        for call in calls
    )


def named_sizes(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are given to sizes: ``n = len(x)``, ``n, d = x.shape``."""
    given = [n for n in nodes if isinstance(n, ast.Assign)]
    alone = [(n, [*operands(n.value)]) for n in given]  # ``int(x.size(0))``
    sizes = [n for n, parts in alone if len(parts) == 1 and whose_size(parts[0]) is not None]
    targets = [t for n in sizes for t in n.targets]
    shapes = [t for n in given for t in n.targets if _is_shape(n.value)]
    targets += [t.elts[0] if isinstance(t, ast.Tuple | ast.List) else t for t in shapes]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def whose_size(node: ast.AST) -> ast.expr | None:
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
        if _is_call_of_torch(node, "numel") and node.args:
            return node.args[0]
        return node.func.value if which and node.func.attr in ("size", *ELEMENTS) else None
    counted = _is_call_of(node, "len") and node.args and not _is_shape(node.args[0])
    return node.args[0] if counted else None


def _is_call_of_torch(call: ast.Call, name: str) -> bool:
    function = call.func
    named = isinstance(function, ast.Attribute) and function.attr == name
    return named and is_one_of({"torch"}, function.value)  # type: ignore[attr-defined]


def _is_shape(node: ast.expr) -> bool:
    call = isinstance(node, ast.Call) and not node.args
    what = node.func if isinstance(node, ast.Call) and call else node
    return isinstance(what, ast.Attribute) and what.attr == ("size" if call else "shape")


def _is_first(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and index.value == 0


def is_one_of(names: set[str], node: ast.AST) -> bool:
    """Tell whether an expression is one of ``names``."""
    return isinstance(node, ast.Name) and node.id in names


def _is_call_of(call: ast.Call, *names: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in names


def is_size(node: ast.AST) -> bool:
    """Tell whether an expression is ``len(x)``, ``x.size(...)``, ``x.shape`` or ``x.numel()``."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("size", "shape", "numel")
    return isinstance(node, ast.Call) and _is_call_of(node, "len")


def nodes_in(body: list[ast.stmt]) -> list[ast.AST]:
    """Return all that statements consist of."""
    return [node for statement in body for node in ast.walk(statement)]
