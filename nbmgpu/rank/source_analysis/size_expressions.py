"""Recognizes expressions whose value is a batch size.

Examples: ``len(x)``, ``x.size(0)``, ``batch.num_graphs``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

ITEM_METHODS = {"item", "tolist"}
"""Methods that convert a loss to a Python number."""

NUMEL_METHODS = ("numel", "nelement")

CONFIGURED_SIZES = {"batch_size"}
SIZE_ATTRIBUTES = {"num_graphs", "num_nodes"} | CONFIGURED_SIZES
"""Attributes that hold a batch's own size; objects other than batches have ``CONFIGURED_SIZES``."""


class BatchSizes:
    """The expressions in a loop body that are sizes of the batch, or of tensors derived from it."""

    def __init__(
        self,
        nodes: list[ast.AST],
        batch_names: Iterable[str],
        derived: bool,
        attributes: Collection[str] = SIZE_ATTRIBUTES,
    ) -> None:
        """Analyze a loop body.

        Args:
            nodes: all nodes of the body.
            batch_names: the names that the loop binds to the batch.
            derived: whether sizes of tensors computed from the batch count, too.
            attributes: attributes that hold a batch's size.
        """
        batch_names, self._attributes = {*batch_names}, attributes
        assigned = [node for node in nodes if isinstance(node, ast.Assign)]
        self._unpacked = {
            name for name in batch_names if _is_unpacked(name, nodes, len(batch_names) == 1)
        }
        self._parts, moved = _propagate(batch_names, assigned, _is_part_of)
        self._derived, computed = _propagate(batch_names, assigned, _derives_from)
        if not derived:
            self._derived, computed = self._parts, moved
        reads = (
            n for n in computed if isinstance(n.value, ast.Attribute) and n.value.attr in attributes
        )
        names = {t.id for n in reads for t in n.targets if isinstance(t, ast.Name)}
        self._size_names = size_names(computed) | names

    def derives(self, node: ast.expr) -> bool:
        """Return whether an expression uses a value that derives from the batch."""
        return _derives_from(node, self._derived)

    def __contains__(self, node: ast.AST) -> bool:
        """Return whether an expression is such a size."""
        shape = isinstance(node, ast.Subscript) and _is_zero(node.slice)  # ``shape[0]``
        if is_name_in(self._size_names, node.value if shape else node):  # type: ignore[attr-defined]
            return True
        sized = sized_expression(node)
        if isinstance(node, ast.Attribute) and node.attr in self._attributes:
            sized = node.value
        if sized is None:
            return False
        # A derived value may be a list, whose ``len`` is not a batch size.
        is_len = isinstance(node, ast.Call) and _is_call_of(node, "len")
        if is_len and is_name_in(self._unpacked, sized):
            return False
        names = self._parts if is_len else self._derived
        return any(is_name_in(names, part) for part in _owners(sized))


def _propagate(
    names: set[str], assigned: list[ast.Assign], matches: Callable[[ast.expr, set[str]], bool]
) -> tuple[set[str], list[ast.Assign]]:
    """Extend ``names`` by what is assigned from matching values; return also the assignments."""
    before = -1
    while len(names) > before:  # assignments are in no order
        before = len(names)
        found = [node for node in assigned if matches(node.value, names)]
        targets = (name for node in found for target in node.targets for name in names_in(target))
        names = names | {name.id for name in targets if isinstance(name.ctx, ast.Store)}
    return names, found


def _derives_from(value: ast.expr, names: set[str]) -> bool:
    return any(name.id in names for name in names_in(value))


def _is_part_of(value: ast.expr, names: set[str]) -> bool:
    if isinstance(value, ast.Tuple | ast.List):
        return any(_is_part_of(part, names) for part in value.elts)
    return any(is_name_in(names, part) for part in _owners(value))


def _is_unpacked(name: str, nodes: list[ast.AST], is_only_name: bool) -> bool:
    """Return whether a batch is a tuple or mapping, whose ``len`` is its number of fields.

    ``x[0]`` shows this only if ``name`` is the only name of the batch, or if a name is assigned
    from it.
    """
    assigned = {
        id(part) for node in nodes if isinstance(node, ast.Assign) for part in _values(node)
    }
    if len({_constant_index(node, name) for node in nodes} - {None}) > 1:
        return True
    for node in nodes:
        owner = getattr(node, "value", None)
        if owner is None or not is_name_in({name}, owner):
            continue
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Tuple) for t in node.targets):
            return True
        if isinstance(node, ast.Starred) or (isinstance(node, ast.keyword) and node.arg is None):
            return True
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            field = node.slice.value
            if isinstance(field, str) or (
                isinstance(field, int) and (is_only_name or id(node) in assigned)
            ):
                return True
    return False


def _constant_index(node: ast.AST, name: str) -> int | None:
    """Return the number in ``name[1]``, None for any other expression."""
    if not isinstance(node, ast.Subscript) or not is_name_in({name}, node.value):
        return None
    index = node.slice.value if isinstance(node.slice, ast.Constant) else None
    return index if isinstance(index, int) else None


def _values(node: ast.Assign) -> list[ast.expr]:
    return node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]


def names_in(node: ast.AST) -> list[ast.Name]:
    """Return all names in an expression or a statement."""
    return [part for part in ast.walk(node) if isinstance(part, ast.Name)]


def _owners(node: ast.expr) -> Iterator[ast.expr]:
    """Yield ``node`` and the objects it is accessed through: ``x[0]``, ``x`` of ``x[0].to(d)``."""
    yield node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from _owners(node.func.value)
    elif isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        yield from _owners(node.value)
    elif isinstance(node, ast.Call) and _is_call_of(node, "len") and node.args:
        yield from _owners(node.args[0])


def operands(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the operands of an arithmetic expression, recursively; else the expression itself."""
    if isinstance(node, ast.BinOp):
        yield from operands(node.left)
        yield from operands(node.right)
    elif isinstance(node, ast.UnaryOp):
        yield from operands(node.operand)
    elif isinstance(node, ast.Call) and _is_call_of(node, "int", "float") and node.args:
        yield from operands(node.args[0])
    else:
        yield node


def reads_scalar(node: ast.expr) -> bool:
    """Return whether an expression converts a tensor to a Python number."""
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    return any(
        _is_call_of(call, "float")
        or (isinstance(call.func, ast.Attribute) and call.func.attr in ITEM_METHODS)
        for call in calls
    )


def size_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names that are assigned from sizes: ``n = len(x)``, ``n, d = x.shape``."""
    assigned = [n for n in nodes if isinstance(n, ast.Assign)]
    values = [(n, [*operands(n.value)]) for n in assigned]  # ``int(x.size(0))``
    sizes = [n for n, parts in values if len(parts) == 1 and sized_expression(parts[0]) is not None]
    targets = [t for n in sizes for t in n.targets]
    shapes = [t for n in assigned for t in n.targets if _is_shape(n.value)]
    targets += [t.elts[0] if isinstance(t, ast.Tuple | ast.List) else t for t in shapes]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def sized_expression(node: ast.AST) -> ast.expr | None:
    """Return ``x`` for ``len(x)``, ``x.size(0)``, ``x.shape[0]`` and the like, else None.

    Dimensions other than the first are the same on all ranks.
    """
    if isinstance(node, ast.Subscript) and _is_zero(node.slice) and _is_shape(node.value):
        shape = node.value.func if isinstance(node.value, ast.Call) else node.value
        return shape.value if isinstance(shape, ast.Attribute) else None
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        dims = [*node.args, *(keyword.value for keyword in node.keywords)]
        is_first_dim = not dims or _is_zero(dims[0])
        if _is_torch_call(node, "numel") and node.args:
            return node.args[0]
        sizes = node.func.attr in ("size", *NUMEL_METHODS)
        return node.func.value if is_first_dim and sizes else None
    is_len = _is_call_of(node, "len") and node.args and not _is_shape(node.args[0])
    return node.args[0] if is_len else None


def _is_torch_call(call: ast.Call, name: str) -> bool:
    function = call.func
    named = isinstance(function, ast.Attribute) and function.attr == name
    return named and is_name_in({"torch"}, function.value)  # type: ignore[attr-defined]


def _is_shape(node: ast.expr) -> bool:
    """Return whether an expression is ``x.shape`` or ``x.size()``."""
    call = isinstance(node, ast.Call) and not node.args
    attribute = node.func if isinstance(node, ast.Call) and call else node
    return isinstance(attribute, ast.Attribute) and attribute.attr == ("size" if call else "shape")


def _is_zero(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and index.value == 0


def is_name_in(names: set[str], node: ast.AST) -> bool:
    """Return whether an expression is one of ``names``."""
    return isinstance(node, ast.Name) and node.id in names


def _is_call_of(call: ast.Call, *names: str) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in names


def is_size(node: ast.AST) -> bool:
    """Return whether an expression is ``len(x)``, ``x.size(...)``, ``x.shape`` or ``x.numel()``."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("size", "shape", "numel")
    return isinstance(node, ast.Call) and _is_call_of(node, "len")


def nodes_in(body: list[ast.stmt]) -> list[ast.AST]:
    """Return all nodes of a list of statements."""
    return [node for statement in body for node in ast.walk(statement)]
