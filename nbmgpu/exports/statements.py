"""The top-level statements of a notebook's cells: which names they read, bind and change."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from nbmgpu.cell.name_analysis import NameReader
from nbmgpu.cell.name_usage import Location, NameUsage
from nbmgpu.cell.source import Fragment

Transform = Callable[[str], str]

UNWRAPPED_MAGICS = ("mgpu", "mgpu_awaited", "time", "capture")
"""Cell magics that run their cell in the notebook's namespace."""

READING_METHODS = frozenset({
    "backward", "describe", "eval", "head", "info", "plot", "show", "state_dict", "step", "train",
    "zero_grad",
})  # fmt: skip
"""Methods that, called on a line of their own, leave what a script has to construct as it is."""

READING_FUNCTIONS = frozenset({"display", "help", "len", "plt.plot", "print", "repr", "type"})
"""Functions that, called on a line of their own, leave their arguments as they are."""

SEEDING = frozenset({"manual_seed", "manual_seed_all", "seed", "seed_everything", "set_seed"})
"""Functions that seed random number generators, by the last part of their name."""


@dataclass(frozen=True)
class Statement:
    """One statement at the top level of a cell.

    Attributes:
        node: the statement.
        text: its source, with the comments directly above it.
        order: its position among all statements that were executed.
        binds: the names that it may bind.
        reads: the names that it may read before it binds them.
        reads_at_once: those that it reads when it is executed, not only in functions it defines.
        changes: the names whose objects it changes: by attribute, by item or by a method call.
        star_imports: the modules of ``from module import *``.
    """

    node: ast.stmt
    text: str
    order: int
    binds: frozenset[str]
    reads: tuple[str, ...]
    reads_at_once: frozenset[str]
    changes: frozenset[str]
    star_imports: tuple[str, ...]

    @property
    def is_import(self) -> bool:
        """Whether it imports something."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def is_definition(self) -> bool:
        """Whether it defines a function or a class."""
        return isinstance(self.node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)

    @property
    def is_simple(self) -> bool:
        """Whether it is executed once, without a body of statements."""
        return isinstance(self.node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr)

    @property
    def assigns_attributes(self) -> bool:
        """Whether it assigns to attributes only, as in ``config.LR = 0.1``."""
        targets = self.node.targets if isinstance(self.node, ast.Assign) else []
        if isinstance(self.node, ast.AugAssign):
            targets = [self.node.target]
        return bool(targets) and all(isinstance(target, ast.Attribute) for target in targets)


def read_statements(cells: Iterable[str], transform: Transform) -> list[Statement]:
    """Return the statements of ``cells``, in order; cells that are not valid Python are left out.

    Args:
        cells: sources, in order of execution; they may have magics.
        transform: turns magics and shell lines into Python.
    """
    found: list[Statement] = []
    for cell in cells:
        for code, node in _nodes(cell, transform):
            if not _calls_ipython(node):
                found.append(read_statement(code, node, len(found)))
    return found


def read_statement(code: str, node: ast.stmt, order: int = 0) -> Statement:
    """Return what ``node``, a statement of ``code``, reads, binds and changes."""
    names = _usage(code, node)
    return Statement(
        node=node,
        text=source_of(code, node),
        order=order,
        binds=frozenset(names.bound),
        reads=tuple(names.reads),
        reads_at_once=frozenset(_usage(code, without_bodies(node)).reads),
        changes=frozenset(_changed(node)),
        star_imports=tuple(names.star_imports),
    )


def names_read(code: str) -> dict[str, Location]:
    """Return the names that ``code`` may read before it binds them, and where it first does."""
    return _fragment_usage(code, ast.parse(code)).reads


def names_bound(code: str) -> frozenset[str]:
    """Return the names that ``code`` may bind at its top level."""
    return frozenset(_fragment_usage(code, ast.parse(code)).bound)


def last_name(node: ast.expr) -> str:
    """Return ``c`` for ``c`` and ``a.b.c``, else an empty string."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def source_of(code: str, node: ast.stmt) -> str:
    """Return the source of a statement, with decorators and the comments directly above it."""
    lines = code.split("\n")
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    text = ast.get_source_segment(code, node) or ""
    if first < node.lineno:
        assert node.end_lineno is not None
        text = "\n".join(lines[first - 1 : node.end_lineno])
    above = first - 1
    while above and lines[above - 1].lstrip().startswith("#") and not node.col_offset:
        above -= 1
    return "\n".join([*lines[above : first - 1], text])


def _nodes(cell: str, transform: Transform) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements of a cell with the code that they are in."""
    code = transform(cell)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return
    for node in tree.body:
        if body := magic_body(node):
            yield from _nodes(body, transform)
        else:
            yield code, node


def magic_body(node: ast.stmt) -> str:
    """Return the cell under a magic that runs it in the notebook's namespace, else nothing."""
    match node:
        case ast.Expr(value=ast.Await(value=call) | call):
            pass
        case _:
            return ""
    match call:
        case ast.Call(func=ast.Attribute(attr="run_cell_magic"), args=[name, _, body]):
            if isinstance(name, ast.Constant) and isinstance(body, ast.Constant):
                return str(body.value) if name.value in UNWRAPPED_MAGICS else ""
    return ""


def _calls_ipython(node: ast.stmt) -> bool:
    """Return whether a statement is a magic or a shell line, or has one in it."""
    return any(isinstance(n, ast.Name) and n.id == "get_ipython" for n in ast.walk(node))


def _usage(code: str, node: ast.stmt) -> NameUsage:
    return _fragment_usage(code, ast.Module([node], []))


def _fragment_usage(code: str, tree: ast.Module) -> NameUsage:
    def parse(text: str) -> Fragment:
        return Fragment(text, ast.parse(text), False, lambda line: line)

    reader = NameReader(parse)
    reader.read(Fragment(code, tree, False, lambda line: line))
    return reader.names


def without_bodies(node: ast.stmt) -> ast.stmt:
    """Return a statement without the bodies of functions, which run later if at all."""
    copied = ast.parse(ast.unparse(node)).body[0]
    for each in ast.walk(copied):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            each.body = [ast.Pass(lineno=each.lineno, col_offset=0)]
        elif isinstance(each, ast.Lambda):
            each.body = ast.Constant(None, lineno=each.lineno, col_offset=0)
    return copied


def _changed(node: ast.stmt) -> Iterator[str]:
    """Yield the names whose objects a statement changes as far as its source shows."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    if _sets_requires_grad(node):  # of the parameters of a model, as in a loop
        yield from (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
    for each in ast.walk(node):
        if isinstance(each, ast.Attribute | ast.Subscript) and not isinstance(each.ctx, ast.Load):
            yield base_name(each)
        match each:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=value, attr=method))):
                if method not in READING_METHODS:
                    yield base_name(value)
    match node:
        case ast.Expr(value=ast.Call(func=function, args=arguments)):
            if ast.unparse(function) not in READING_FUNCTIONS:  # such as random.shuffle(order)
                yield from (base_name(each) for each in arguments)


def _sets_requires_grad(node: ast.stmt) -> bool:
    """Return whether a statement freezes parameters, or the reverse; an optimizer reads alone."""
    return any(
        isinstance(each, ast.Attribute)
        and (
            each.attr == "requires_grad_"
            or (each.attr == "requires_grad" and not isinstance(each.ctx, ast.Load))
        )
        for each in ast.walk(node)
    )


def base_name(node: ast.expr) -> str:
    """Return ``a`` for ``a``, ``a.b`` and ``a[0].b``, else an empty string."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def without_gradients(tree: ast.Module) -> Iterator[int]:
    """Yield the ids of nodes in blocks and functions without gradients."""
    for node in ast.walk(tree):
        managers: list[ast.expr] = []
        if isinstance(node, ast.With):
            managers = [item.context_expr for item in node.items]
        elif isinstance(node, ast.FunctionDef):
            managers = node.decorator_list
        if any(word in ast.unparse(m) for m in managers for word in ("no_grad", "inference_mode")):
            yield from map(id, ast.walk(node))
